"""The output directory of a local job: what its processes write, what the next command needs to continue, and
where the job that it resumes from has its own."""

import fcntl
import os
import secrets
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError

from grpo_api.contract.endpoints import ADMIN_TOKEN_FILE, DATA_TOKEN_FILE
from grpo_api.contract.run_config import ResolvedReward, RunConfig, parse_run_config
from grpo_api.contract.versions import SchemaSkewError
from grpo_api.model import ApiModel
from grpo_api.resolve import resolve
from grpo_api.v1alpha1.job import GRPOJob
from grpo_api.v1alpha1.spec import RewardSpec
from grpo_runtime.errors import UserError
from grpo_runtime.report.run_file import RUN_CONFIG_FILE
from grpo_runtime.storage.files import write_atomically
from grpo_runtime.storage.volume_errors import volume_errors_named

_MAY_CHANGE = "topology.rolloutReplicas"
"""The field of a RunConfig that may change while a job runs, here as in a cluster."""


class State(ApiModel):
    """What one command keeps for the next."""

    attempt: int = 0
    """The last attempt that began. Later ones get higher numbers, because checkpoints refuse lower ones."""
    is_done: bool = False
    is_on_gpus: bool = False
    """Whether the run began on GPUs, where it stays."""
    has_lowered_budget: bool = False
    """Whether a GPU was out of memory, so that attempts compute half as many tokens at a time."""


class Workspace:
    """One output directory, used by one command at a time.

    The trainer writes `metrics.jsonl`, `checkpoints/`, `model/` and TensorBoard's files, as in a pod. `logs/`
    has what each process printed, `run.json` the RunConfig, and `.local/` the rest of what this command
    needs.
    """

    def __init__(self, output: Path) -> None:
        self.output = output
        self.run_config = output / RUN_CONFIG_FILE
        self.logs = output / "logs"
        self.own = output / ".local"
        self.tokens = self.own / "tokens"
        self.volumes = self.own / "volumes"
        self._state = self.own / "state.json"
        self._lock = self.own / "lock"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the directory and keep other commands out of it.

        Raises UserError when another command uses it, and VolumeFullError when a write inside the block finds
        no space left.
        """
        with volume_errors_named(_nearest_existing(self.output)):
            for folder in (self.output, self.logs, self.own):
                folder.mkdir(parents=True, exist_ok=True)
        with volume_errors_named(self.output), self._lock.open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                owner = lock.read().strip()
                raise UserError(
                    f"{self.output} is in use by process {owner}: wait for it, or choose another --output"
                ) from None
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            yield

    def is_in_use(self) -> bool:
        """Whether another command holds it."""
        try:
            lock = self._lock.open()
        except FileNotFoundError:
            return False
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def begin(self, job: GRPOJob, *, threads_per_process: int | None = None) -> RunConfig:
        """Write the RunConfig; it keeps the uid that this job began with, which its checkpoints carry.
        `threads_per_process` are those of this machine for a job that names none and begins now.

        Raises UserError when the directory belongs to another spec.
        """
        known = self.begun_config()
        uid = known.job.uid if known else str(uuid.uuid4())
        job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": uid})})
        run_config = resolve(job, is_one_machine=True, threads_per_process=threads_per_process)
        if known is not None:
            if job.spec.weight_sync.named_backend is None:
                run_config = _with_backend_of(run_config, known)
            if job.spec.trainer.threads_per_process is None:
                # also on another machine: the number decides the last bits of a sum
                threads = {"threads_per_process": known.threads_per_process}
                run_config = run_config.model_copy(update=threads)
            run_config = _with_rewards_of(run_config, known, job=job)
            self._refuse_another(known, run_config)
        write_atomically(self.run_config, run_config.model_dump_json(by_alias=True, indent=1), durable=True)
        return run_config

    def begun_config(self) -> RunConfig | None:
        """The RunConfig of the run in this directory; None when none has begun. Raises UserError for one of
        another release."""
        if not self.run_config.exists():
            return None
        try:
            return parse_run_config(self.run_config.read_text())
        except (SchemaSkewError, ValidationError, ValueError) as error:
            raise UserError(
                f"{self.run_config} is not of this release ({error}): choose another --output"
            ) from error

    @property
    def was_on_gpus(self) -> bool | None:
        """Whether the run in this directory is on GPUs; None when none has begun."""
        return self.state().is_on_gpus if self.run_config.exists() else None

    def state(self) -> State:
        """What the last command kept; the initial state if there was none."""
        if not self._state.exists():
            return State()
        return State.model_validate_json(self._state.read_text())

    def remember(self, state: State) -> None:
        """Keep `state` for the next command."""
        write_atomically(self._state, state.model_dump_json(by_alias=True), durable=True)

    @contextmanager
    def fresh_tokens(self) -> Iterator[None]:
        """Fresh tokens that only this user can read; they are removed at the end of the block."""
        shutil.rmtree(self.tokens, ignore_errors=True)
        self.tokens.mkdir(mode=0o700)
        try:
            for name in (DATA_TOKEN_FILE, ADMIN_TOKEN_FILE):
                descriptor = os.open(self.tokens / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(descriptor, "w") as file:
                    file.write(secrets.token_urlsafe(32) + "\n")
            yield
        finally:
            shutil.rmtree(self.tokens)

    def cache(self, name: str) -> Path:
        """Scratch space of one process."""
        return self.own / "cache" / name

    def log(self, name: str) -> Path:
        """Where the process `name` prints to."""
        return self.logs / f"{name}.log"

    def termination_log(self, name: str) -> Path:
        """Where the process `name` writes its termination message."""
        return self.own / f"{name}.termination.json"

    def remove_caches(self) -> None:
        """Remove the scratch space of all processes, as pods lose theirs."""
        shutil.rmtree(self.own / "cache", ignore_errors=True)

    def _refuse_another(self, known: RunConfig, given: RunConfig) -> None:
        before, now = _values(known), _values(given)
        changed = [
            f"{field} was {before.get(field, 'not set')!r} and is now {now.get(field, 'not set')!r}"
            for field in sorted(before.keys() | now.keys())
            if before.get(field) != now.get(field) and field != _MAY_CHANGE
        ]
        if changed:
            raise UserError(
                f"{self.output} was begun with another spec ({'; '.join(changed)}): "
                "choose another --output, or undo the change to continue"
            )


def with_place_of_resumed(job: GRPOJob, workspace: Workspace) -> GRPOJob:
    """The job with the output directory of `resumeFrom.job` in its place: the one of that name beside its
    own, or where it was when this job began.

    Raises UserError when this job has not begun and that directory is missing, or another command writes to
    it.
    """
    resume = job.spec.resume_from
    if resume is None or resume.job is None:
        return job
    place = _place_of_run(workspace, resume.job) or _place_beside(workspace, resume.job)
    found = resume.with_source(place)
    return job.model_copy(update={"spec": job.spec.model_copy(update={"resume_from": found})})


def _place_of_run(workspace: Workspace, name: str) -> str | None:
    """Where the output of that job was when the run in the workspace began; None where none has begun, or one
    with another job, which is refused as any other change."""
    known = workspace.begun_config()
    place = known.resume_from.source if known and known.resume_from else None
    return place if place and place.endswith(f"/{name}") else None


def _place_beside(workspace: Workspace, name: str) -> str:
    other = Workspace(workspace.output.parent / name)
    if not other.output.is_dir():
        raise UserError(
            f"resumeFrom.job: there is no output of {name} at {other.output}: run that job first, or name "
            "its output directory in resumeFrom.source as file:///PATH"
        )
    if other.is_in_use():
        raise UserError(f"resumeFrom.job: {name} still runs in {other.output}: wait for its end")
    return f"file://{quote(str(other.output))}"


def _with_rewards_of(run_config: RunConfig, known: RunConfig, *, job: GRPOJob) -> RunConfig:
    """`run_config` with as many reward workers and threads of reward models as the run began with, where the
    job does not say."""
    begun = {reward.name: reward for reward in known.rewards}
    rewards = tuple(
        _as_begun(resolved, begun[resolved.name], spec=spec) if resolved.name in begun else resolved
        for spec, resolved in zip(job.spec.resolved_rewards, run_config.rewards, strict=True)
    )
    return run_config.model_copy(update={"rewards": rewards})


def _as_begun(resolved: ResolvedReward, begun: ResolvedReward, *, spec: RewardSpec) -> ResolvedReward:
    if spec.workers is None:
        resolved = resolved.model_copy(update={"workers": begun.workers})
    if resolved.model and begun.model and spec.model and spec.model.threads is None:
        model = resolved.model.model_copy(update={"threads": begun.model.threads})
        resolved = resolved.model_copy(update={"model": model})
    return resolved


def _with_backend_of(run_config: RunConfig, known: RunConfig) -> RunConfig:
    """What `Auto` meant when the run began holds to its end, also where a later release chooses another."""
    weight_sync = run_config.weight_sync.model_copy(update={"backend": known.weight_sync.backend})
    return run_config.model_copy(update={"weight_sync": weight_sync})


def _nearest_existing(folder: Path) -> Path:
    """`folder`, or else the nearest folder above it that exists."""
    return next(place for place in (folder, *folder.parents) if place.exists())


def _values(run_config: RunConfig) -> dict[str, Any]:
    """Every value of a RunConfig by its path."""
    return dict(_leaves(run_config.to_object()))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of everything in `value` that is neither an object nor a list."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]")
    else:
        yield path, value
