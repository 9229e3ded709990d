"""What the pods of a job start: trainer, its ranks, and rollout."""

import argparse
import os
from pathlib import Path

from grpo_runtime.process.network import ANY_ADDRESS
from grpo_runtime.subcommands.command import Command

_TRAINER = """\
Process 1 of a trainer pod: starts the training processes, serves /progress, /metrics and /healthz, and ends
with the exit code of the training process that failed first. The operator sets its environment. On your own
machine use `grpo-runtime run`.

  grpo-runtime trainer --grace-seconds 20
"""


def _add_arguments_of_trainer(parser: argparse.ArgumentParser) -> None:
    # not those of SupervisorOptions, whose import takes long: --help answers at once
    from grpo_api.contract.endpoints import RENDEZVOUS_PORT, TRAINER_PORT
    from grpo_api.contract.graces import RANKS_GRACE_SECONDS

    parser.add_argument("--host", default=ANY_ADDRESS, help="address to listen on (%(default)s)")
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


def _trainer(options: argparse.Namespace) -> int:
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


TRAINER = Command(
    "trainer",
    help="supervise the training processes of one trainer pod",
    description=_TRAINER,
    add_arguments=_add_arguments_of_trainer,
    execute=_trainer,
)


_RANKS = """\
The fork server of one trainer pod: imports once what the training processes need, forks each of them, and
ends. `grpo-runtime trainer` starts it, with torch's rendezvous in the environment (GROUP_RANK, WORLD_SIZE,
MASTER_ADDR, ...), and the training processes become its children.

  grpo-runtime ranks --run-dir /cache/run
"""


def _add_arguments_of_ranks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run-dir",
        type=Path,
        required=True,
        help="where the training processes write their progress, and why they failed",
    )


def _ranks(options: argparse.Namespace) -> int:
    from grpo_runtime.supervisor.fork_server import fork_ranks
    from grpo_runtime.trainer.rank_imports import import_rank

    fork_ranks(lambda: import_rank(run_dir=options.run_dir), run_dir=options.run_dir)


RANKS = Command(
    "ranks",
    help="fork the training processes of one trainer pod; started by `trainer`",
    description=_RANKS,
    add_arguments=_add_arguments_of_ranks,
    execute=_ranks,
)


def _add_arguments_of_rollout(parser: argparse.ArgumentParser) -> None:
    """None: `serve.main` reads all of them, its --help included."""


def _rollout(options: argparse.Namespace) -> int:
    from grpo_runtime.engines.serve.main import main as serve

    return serve(options.rest)


ROLLOUT = Command(
    "rollout",
    help="serve one rollout engine (vLLM); --help for its options",
    description="",
    add_arguments=_add_arguments_of_rollout,
    execute=_rollout,
    has_own_options=True,
)
