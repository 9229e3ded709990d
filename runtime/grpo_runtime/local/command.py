"""`grpo-runtime run`: trains a GRPOJob from a file on this machine, without Kubernetes."""

import importlib.metadata
import os
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.run_config import RunConfig
from grpo_api.problems import problems
from grpo_api.resolve import resumed_volumes_of, secrets_of, volumes_of, weights_volumes_of
from grpo_api.source import Volume, VolumeKind
from grpo_api.v1alpha1.job import GRPOJob, parse_job
from grpo_api.v1alpha1.spec import Mode
from grpo_runtime.errors import UserError, VolumeFullError
from grpo_runtime.local.attempts import AttemptOutcome, Next
from grpo_runtime.local.context import LocalContext, Programs
from grpo_runtime.local.data_check import check_before_start
from grpo_runtime.local.describe import count, crowded, gpus_asked, local_problem
from grpo_runtime.local.documents import Document, pick_job, read_documents
from grpo_runtime.local.environments import inherited
from grpo_runtime.local.gpus import NUMBERED_AS_LISTED, GpuShares, placed_on, usable_gpus
from grpo_runtime.local.job import EndedAtOnceError, LocalJob
from grpo_runtime.local.process_table import ProcessTable
from grpo_runtime.local.screen import Screen, screen_for
from grpo_runtime.local.threads import threads_on, usable_cores
from grpo_runtime.local.volume_folders import lay_out_volumes, parse_volume_flags
from grpo_runtime.local.workspace import Workspace, with_place_of_resumed
from grpo_runtime.report.metrics_file import METRICS_FILE
from grpo_runtime.report.plot import plot_run
from grpo_runtime.spec_checks import spec_problems
from grpo_runtime.storage.volume_errors import volume_errors_named

DEFAULT_OUTPUT = Path("grpo-runs")
ENDED_AT_ONCE = 130
"""Exit code after a second Ctrl-C, as of any program that Ctrl-C ends."""


@dataclass(frozen=True)
class RunOptions:
    """The options of `grpo-runtime run`. `command` is what the person typed."""

    file: Path
    job: str | None = None
    output: Path | None = None
    volumes: Sequence[str] = ()
    command: Sequence[str] = ()
    programs: Programs = field(default_factory=Programs)
    find_gpus: Callable[[Mapping[str, str]], tuple[str, ...]] = usable_gpus


def run(options: RunOptions, *, environment: Mapping[str, str]) -> int:
    """Run the job to its end and return the exit code.

    It is 0 when all steps are done, 143 after a stop with a checkpoint, 130 after a second Ctrl-C, 75 when
    the volume is full, and else that of the process that failed.
    """
    screen = screen_for()
    stop_signals = _block_stop_signals()
    try:
        documents = read_documents(options.file)
        document = pick_job(documents, path=options.file, name=options.job)
        job = _parse(document)
        _require_vllm()
        workspace = Workspace(_output(options, job))
        gpus = options.find_gpus(environment)
        job = placed_on(job, gpus, was_on_gpus=workspace.was_on_gpus)
        if problem := local_problem(job):
            raise UserError(problem)
        with workspace.held():
            return _run_in(
                workspace,
                job,
                documents=documents,
                options=options,
                environment=environment,
                gpus=gpus,
                screen=screen,
                stop_signals=stop_signals,
            )
    except UserError as error:
        screen.say(f"error: {error}")
        return ExitCode.USER_ERROR
    except VolumeFullError as error:
        screen.say(
            f"failed: VolumeFull (exit code {ExitCode.TRANSIENT:d}): {error}; once there is space "
            f"{_resume_sentence(options)}"
        )
        return ExitCode.TRANSIENT


def _run_in(
    workspace: Workspace,
    job: GRPOJob,
    *,
    documents: Sequence[Document],
    options: RunOptions,
    environment: Mapping[str, str],
    gpus: tuple[str, ...],
    screen: Screen,
    stop_signals: set[signal.Signals],
) -> int:
    threads = threads_on(usable_cores(), job.spec.trainer, environment=environment)
    num_gpus = sum(gpus_asked(job))
    if num_gpus:
        # before the RunConfig, whose being there says that the run has begun
        workspace.remember(workspace.state().model_copy(update={"is_on_gpus": True}))
    job = with_place_of_resumed(job, workspace)
    run_config = workspace.begin(job, threads_per_process=threads)
    if workspace.state().is_done:
        screen.say(
            f"every step of this job is done; to train again choose another --output than {workspace.output}"
        )
        _show_result(workspace, screen)
        return ExitCode.DONE
    given = parse_volume_flags(options.volumes)
    needed = (
        *volumes_of(run_config),
        *resumed_volumes_of(run_config),
        *weights_volumes_of(run_config),
        *secrets_of(run_config),
    )
    lay_out_volumes(needed, given=given, documents=documents, into=workspace.volumes)
    with workspace.fresh_tokens() if run_config.needs_tokens else nullcontext():
        context = LocalContext(
            run_config=run_config,
            workspace=workspace,
            processes=ProcessTable(),
            programs=options.programs,
            environment=NUMBERED_AS_LISTED | inherited(environment) | _hub_cache(job, given),
            gpus=GpuShares.of(job, gpus),
            say=screen.say,
        )
        screen.say(_opening(job, run_config, workspace))
        if not num_gpus and (warning := crowded(job, num_cores=len(os.sched_getaffinity(0)))):
            screen.say(warning)
        try:
            if not workspace.state().attempt and not check_before_start(context, stop_signals=stop_signals):
                screen.say(f"stopped before anything began; {_resume_sentence(options)}")
                return ExitCode.TERMINATED
            outcome = LocalJob(context, job.spec, screen, stop_signals=stop_signals).run()
        except EndedAtOnceError:
            screen.say(f"ended at once; {_resume_sentence(options)}")
            return ENDED_AT_ONCE
        finally:
            workspace.remove_caches()
    return _close(outcome, workspace, options, screen)


def _block_stop_signals() -> set[signal.Signals]:
    """Block the signals that ask for a stop, for sigwait. SIGHUP stays ignored where it is (nohup)."""
    stop_signals = {signal.SIGINT, signal.SIGTERM}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        stop_signals.add(signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals | {signal.SIGCHLD})
    return stop_signals


def _parse(document: Document) -> GRPOJob:
    found = problems(document.data)
    if not found:
        job = parse_job(document.data)
        found = list(spec_problems(rewards=job.spec.resolved_rewards, sampling=job.spec.sampling))
    if found:
        lines = "\n".join(f"  {problem}" for problem in found)
        raise UserError(f"{document.path}:{document.line}: {count(len(found), 'problem')}\n{lines}")
    return job


def _require_vllm() -> None:
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            "vLLM is not installed in this Python environment: docs/guides/local-mode.md says how"
        ) from None


def _output(options: RunOptions, job: GRPOJob) -> Path:
    if options.output is not None:
        return options.output.absolute()
    folder = DEFAULT_OUTPUT.absolute()
    with volume_errors_named(folder.parent):
        folder.mkdir(exist_ok=True)
        # the working directory is often a repository, and no output belongs into one
        (folder / ".gitignore").write_text("*\n")
    return folder / job.metadata.name


def _hub_cache(job: GRPOJob, given: Mapping[Volume, Path]) -> dict[str, str]:
    """Where the Hub's cache is: the folder given for hub.cacheClaim, else this user's own cache."""
    claim = job.spec.hub.cache_claim
    folder = given.get(Volume(VolumeKind.CLAIM, claim)) if claim else None
    return {} if folder is None else {"HF_HOME": str(folder)}


def _opening(job: GRPOJob, run_config: RunConfig, workspace: Workspace) -> str:
    topology = run_config.topology
    trainers = count(topology.world_size, "training process")
    engines = (
        "with an engine inside"
        if run_config.mode is Mode.COLOCATED
        else f"and {count(topology.rollout_replicas, 'engine')}"
    )
    num_gpus = sum(gpus_asked(job))
    on_gpus = f" on {count(num_gpus, 'GPU')}" if num_gpus else ""
    return (
        f"{job.metadata.name}: {run_config.mode.value}, because {job.spec.mode_reason}; "
        f"{trainers} {engines}{on_gpus}, weights by {run_config.weight_sync.backend}\n"
        f"output {_short(workspace.output)}, logs {_short(workspace.logs)}; Ctrl-C saves and stops"
    )


def _close(outcome: AttemptOutcome, workspace: Workspace, options: RunOptions, screen: Screen) -> int:
    """Say how the job ended and where everything is; returns the exit code."""
    if outcome.next is Next.DONE:
        _show_result(workspace, screen)
        return ExitCode.DONE
    if outcome.next is Next.STOPPED:
        saved = _newest_checkpoint(workspace)
        what = "nothing was saved yet" if saved is None else f"saved: {saved}"
        screen.say(f"stopped, {what}; {_resume_sentence(options)}")
        return ExitCode.TERMINATED
    assert outcome.cause is not None and outcome.final is not None
    why, ended = outcome.final, outcome.cause.ended
    exit_code = ended.termination.exit_code
    log = _short(workspace.log(ended.name))
    screen.say(f"failed: {why.reason} (exit code {exit_code}): {why.message}\n  log {log}")
    return exit_code


def _show_result(workspace: Workspace, screen: Screen) -> None:
    if (workspace.output / METRICS_FILE).exists():
        screen.say(plot_run(workspace.output))
    screen.say(f"done: the trained policy is in {_short(workspace.output / 'model')}")


def _newest_checkpoint(workspace: Workspace) -> Path | None:
    latest = workspace.output / "checkpoints" / "LATEST"
    return _short(latest.parent / latest.read_text().strip()) if latest.exists() else None


def _resume_sentence(options: RunOptions) -> str:
    return f"the same command continues from there: {shlex.join(options.command)}"


def _short(path: Path) -> Path:
    """A path as a person in the working directory would write it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
