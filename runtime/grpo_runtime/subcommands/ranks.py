"""The fork server of a trainer pod."""

import argparse
from pathlib import Path

HELP = "fork the training processes of one trainer pod; started by `trainer`"
DESCRIPTION = """\
The fork server of one trainer pod: imports once what the training processes need, forks each of them, and
ends. `grpo-runtime trainer` starts it, with torch's rendezvous in the environment (GROUP_RANK, WORLD_SIZE,
MASTER_ADDR, ...), and the training processes become its children.

  grpo-runtime ranks --run-dir /cache/run
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options and operands of `ranks`."""
    parser.add_argument(
        "--run-dir",
        type=Path,
        required=True,
        help="where the training processes write their progress, and why they failed",
    )


def execute(options: argparse.Namespace) -> int:
    """Run it; returns the exit code."""
    from grpo_runtime.supervisor.fork_server import fork_ranks
    from grpo_runtime.trainer.rank_imports import import_rank

    fork_ranks(lambda: import_rank(run_dir=options.run_dir), run_dir=options.run_dir)
