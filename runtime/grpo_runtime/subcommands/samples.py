"""Print completions of a run with their rewards."""

import argparse
import sys
from pathlib import Path

from grpo_runtime.subcommands.pipes import end_when_the_pipe_closes

HELP = "print completions of a job with their rewards"
DESCRIPTION = """\
Print completions of a job with their rewards, group by group, also while the job runs: of the newest step
that was kept, or of another one. report.samplesEverySteps of the job says which steps are kept.

  grpo-runtime samples grpo-runs/copy-local
  grpo-runtime samples grpo-runs/copy-local --step 40 --groups 10 --order worst

`--order mixed` begins with the groups whose rewards differ most, which the policy learns from. The tables
are Parquet files in completions/ of the output directory, for pandas or `datasets`:

  load_dataset("parquet", data_files="grpo-runs/copy-local/completions/*.parquet")
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options and operands of `samples`."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="output directory of the job")
    parser.add_argument("--step", type=int, metavar="N", help="a step that was kept (default: the newest)")
    parser.add_argument("--groups", type=int, default=3, metavar="N", help="prompts to show (%(default)s)")
    parser.add_argument(
        "--order", choices=("step", "best", "worst", "mixed"), default="step", help="which come first"
    )


def execute(options: argparse.Namespace) -> int:
    """Run it; returns the exit code."""
    from grpo_runtime.errors import UserError
    from grpo_runtime.report.samples_text import Order, describe_samples

    end_when_the_pipe_closes()
    try:
        text = describe_samples(
            options.folder, step=options.step, num_groups=options.groups, order=Order(options.order)
        )
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(text)
    return 0
