"""Write the page of a run."""

import argparse
import sys
from pathlib import Path

HELP = "write a page with the curves and completions of a job"
DESCRIPTION = """\
Write one HTML file about a job that needs no server and no network: curves, completions, where the time of a
step goes, which split of GPUs would be better, and the configuration. It may be written while the job runs;
a job writes its own at the end.

  grpo-runtime report grpo-runs/copy-local
  grpo-runtime report grpo-runs/copy-local --output copy.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options and operands of `report`."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="output directory of the job")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the page (default FOLDER/report.html)")


def execute(options: argparse.Namespace) -> int:
    """Run it; returns the exit code."""
    from grpo_runtime.errors import UserError
    from grpo_runtime.report.page.page import write_page

    try:
        print(write_page(options.folder, into=options.output))
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0
