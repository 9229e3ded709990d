"""Process 1 of a trainer pod."""

import argparse
import os
from pathlib import Path

from grpo_runtime.process.any_address import ANY_ADDRESS

HELP = "supervise the training processes of one trainer pod"
DESCRIPTION = """\
Process 1 of a trainer pod: starts the training processes, serves /progress, /metrics and /healthz, and ends
with the exit code of the training process that failed first. The operator sets its environment. On your own
machine use `grpo-runtime run`.

  grpo-runtime trainer --grace-seconds 20
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options and operands of `trainer`."""
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


def execute(options: argparse.Namespace) -> int:
    """Run it; returns the exit code."""
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
