"""Draw the reward of a job in the terminal."""

import argparse
from pathlib import Path

from grpo_runtime.subcommands.pipes import end_when_the_pipe_closes

HELP = "draw the reward of a job in the terminal"
DESCRIPTION = """\
Draw the reward of each step of a job in the terminal, also while the job runs.

  grpo-runtime plot grpo-runs/copy-local
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options and operands of `plot`."""
    parser.add_argument("metrics", type=Path, help="metrics.jsonl of a job, or the directory it is in")
    parser.add_argument("--width", type=int, default=72, help="columns (%(default)s)")


def execute(options: argparse.Namespace) -> int:
    """Run it; returns the exit code."""
    from grpo_runtime.report.plot import plot_run

    end_when_the_pipe_closes()
    print(plot_run(options.metrics, width=options.width))
    return 0
