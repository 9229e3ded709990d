"""`grpo-runtime`: the command that the pods of a GRPOJob run, and that a person runs on their own machine.

Every import is local: the supervisor must stay small, and neither it nor `validate` of a job without GPUs may
load torch.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_DESCRIPTION = """\
GRPO post-training from a GRPOJob: on this machine, or inside the pods of a cluster.

On your machine, without Kubernetes:
  grpo-runtime validate job.yaml     say what is wrong with a job, or what it would do
  grpo-runtime run job.yaml          train it here, in the same processes that a cluster runs in pods
  grpo-runtime plot grpo-runs/NAME   draw the reward of a job in the terminal

Inside the pods of a GRPOJob:
  A trainer pod runs `grpo-runtime trainer`: process 1, which starts `grpo-runtime ranks` for the training
  processes, serves /progress, /metrics and /healthz, and ends with the exit code of the training process that
  failed first.
  A rollout pod runs `grpo-runtime rollout`: vLLM's server behind a guard that checks tokens and attempts.
  Both read what to do from environment variables that the operator sets (GRPO_RUN_CONFIG and a few more).
"""

_RUN = """\
Train a GRPOJob on this machine, without Kubernetes and without a GPU.

It starts the processes that a cluster would start in pods: the trainer with its training processes and, in
mode Disaggregated, the vLLM engines. It reads the same file that `kubectl apply` takes.

  grpo-runtime run examples/copy-local.yaml

Ctrl-C saves a checkpoint at the next step boundary and stops; the same command goes on from it. A second
Ctrl-C ends everything at once. A trainer that fails is started again as the next attempt, up to
failurePolicy.maxRestarts times; an engine that fails is started again at once.

The output directory gets metrics.jsonl, checkpoints/, model/ (a Hugging Face directory), TensorBoard's files,
and logs/ with what each process printed. For a PersistentVolumeClaim or a ConfigMap that the job reads, say
which directory stands for it:

  grpo-runtime run job.yaml --volume claim/models=/data/models --volume configmap/rewards=./rewards

ConfigMaps in the same file need no flag. spec.checkpoint.claimName needs none either: checkpoints go to the
output directory. The exit code is 0 when every step is done, 143 after a stop, 130 after a second Ctrl-C, 75
when the volume is full, and otherwise that of the process that failed.
"""

_VALIDATE = """\
Say what is wrong with GRPOJobs, by field and in the words of the API server. For a valid job, say what it
would do: the mode and why, pods, GPUs, steps and samples, what it reads, where checkpoints go. Takes YAML
files with any number of documents. The exit code is 0 when each file has a GRPOJob and all are valid, or 1.

For a job with GPUs it also says what each of them will hold at most, from the model's config.json: that of
a file:// model, or of an hf:// model from the cache or the Hub. With --gpu-memory-gib a job that does not
fit is refused, and the fields to change are named.

  grpo-runtime validate examples/copy-disaggregated.yaml my-job.yaml
  grpo-runtime validate --gpu-memory-gib 80 examples/gsm8k-disaggregated.yaml
"""

_TRAINER = """\
Process 1 of a trainer pod: starts the training processes, serves /progress, /metrics and /healthz, and ends
with the exit code of the training process that failed first. The operator sets its environment. On your own
machine use `grpo-runtime run`.

  grpo-runtime trainer --grace-seconds 20
"""

_RANKS = """\
The fork server of one trainer pod: imports once what the training processes need, forks each of them, and
ends. `grpo-runtime trainer` starts it, with torch's rendezvous in the environment (GROUP_RANK, WORLD_SIZE,
MASTER_ADDR, ...), and the training processes become its children.

  grpo-runtime ranks --run-dir /cache/run
"""

_PLOT = """\
Draw the reward of each step of a job in the terminal, also while the job runs.

  grpo-runtime plot grpo-runs/copy-local
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(
        prog="grpo-runtime", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str, description: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=text,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    _add_run(command("run", "train a GRPOJob on this machine", _RUN))
    validate = command("validate", "say what is wrong with a GRPOJob, or what it would do", _VALIDATE)
    validate.add_argument("files", type=Path, nargs="+", metavar="FILE", help="YAML with one GRPOJob or more")
    validate.add_argument(
        "--gpu-memory-gib", type=float, metavar="N", help="memory of each GPU: refuse jobs that need more"
    )
    _add_plot(command("plot", "draw the reward of a job in the terminal", _PLOT))
    _add_trainer(command("trainer", "supervise the training processes of one trainer pod", _TRAINER))
    ranks = command("ranks", "fork the training processes of one trainer pod; started by `trainer`", _RANKS)
    ranks.add_argument(
        "--run-dir",
        type=Path,
        required=True,
        help="where the training processes write their progress, and why they failed",
    )
    commands.add_parser(
        "rollout", help="serve one rollout engine (vLLM); --help for its options", add_help=False
    )
    options, rest = parser.parse_known_args(given)
    if rest and options.command != "rollout":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if options.command == "rollout":
        from grpo_runtime.serve.main import main as serve

        return serve(rest)
    if options.command == "run":
        return _run_locally(options, given)
    run = {"trainer": _run_trainer, "ranks": _run_ranks, "validate": _validate, "plot": _plot}
    return run[options.command](options)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="YAML with the GRPOJob")
    parser.add_argument("--job", metavar="NAME", help="which GRPOJob, if the file has several")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="output directory (default ./grpo-runs/NAME)"
    )
    parser.add_argument(
        "--volume",
        action="append",
        default=[],
        metavar="KIND/NAME=DIR",
        help="the directory that stands for claim/NAME or configmap/NAME; may be given several times",
    )


def _run_locally(options: argparse.Namespace, given: Sequence[str]) -> int:
    from grpo_runtime.local.command import RunOptions, run

    return run(
        RunOptions(
            file=options.file,
            job=options.job,
            output=options.output,
            volumes=options.volume,
            command=("grpo-runtime", *given),
        ),
        environment=os.environ,
    )


def _validate(options: argparse.Namespace) -> int:
    from grpo_runtime.local.validate import validate

    _end_when_the_pipe_closes()
    return validate(options.files, gpu_gib=options.gpu_memory_gib)


def _add_trainer(parser: argparse.ArgumentParser) -> None:
    # not those of SupervisorOptions, whose import takes long: --help answers at once
    from grpo_api.contract.endpoints import RENDEZVOUS_PORT, TRAINER_PORT
    from grpo_api.contract.graces import RANKS_GRACE_SECONDS

    parser.add_argument("--host", default="", help="address to listen on (default: all)")
    parser.add_argument("--port", type=int, default=TRAINER_PORT, help="HTTP port (%(default)s)")
    parser.add_argument(
        "--rendezvous-port",
        type=int,
        default=RENDEZVOUS_PORT,
        help="port on pod 0 where ranks meet (%(default)s)",
    )
    parser.add_argument(
        "--grace-seconds",
        type=float,
        default=RANKS_GRACE_SECONDS,
        help="how long ranks may take to save and stop after SIGTERM; keep it a few seconds below the pod's "
        "terminationGracePeriodSeconds (%(default)s)",
    )
    parser.add_argument(
        "--termination-log",
        type=Path,
        default=Path("/dev/termination-log"),
        help="file for the termination message (%(default)s)",
    )


def _run_trainer(options: argparse.Namespace) -> int:
    from grpo_runtime.supervisor.supervisor import SupervisorOptions, supervise

    return supervise(
        os.environ,
        options=SupervisorOptions(
            host=options.host,
            port=options.port,
            rendezvous_port=options.rendezvous_port,
            grace_seconds=options.grace_seconds,
            termination_log=options.termination_log,
        ),
    )


def _run_ranks(options: argparse.Namespace) -> int:
    from grpo_runtime.supervisor.fork_server import fork_ranks
    from grpo_runtime.trainer.rank_imports import import_rank

    fork_ranks(lambda: import_rank(run_dir=options.run_dir), run_dir=options.run_dir)


def _add_plot(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("metrics", type=Path, help="metrics.jsonl of a job, or the directory it is in")
    parser.add_argument("--width", type=int, default=72, help="columns (%(default)s)")


def _plot(options: argparse.Namespace) -> int:
    from grpo_runtime.report.plot import plot_run

    _end_when_the_pipe_closes()
    print(plot_run(options.metrics, width=options.width))
    return 0


def _end_when_the_pipe_closes() -> None:
    """End without a traceback when the program that reads our output (`| head`) has ended."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
