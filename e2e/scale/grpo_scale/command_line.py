"""`make bench-scale`: its options, and what it prints."""

import argparse
import asyncio
import sys
from pathlib import Path

from grpo_cluster.settings import ClusterError
from grpo_scale.bench import measure
from grpo_scale.report import json_line, table

_DESCRIPTION = """\
How many jobs one operator carries, and how soon it shows what happens to them. On this machine it starts an
API server, a scheduler and controllers of its own, fake nodes (KWOK), a stub that answers /progress for every
trainer pod, and the operator as a process. Then, in one run:

  1. the built-in Job controller gets as many Jobs with as many pods, for comparison
  2. the operator gets N GRPOJobs with one trainer pod and two rollout pods each, until all run
  3. at rest: pods of running jobs become unready and ready again; how long until their jobs' status says so
  4. the storm: the same while N more jobs are created at once
  5. the operator starts again, and lists everything again: how many objects are written for nothing

Seconds depend on the machine and on what else it does: compare the operator with the Job controller of the
same run. It takes some minutes.
"""


def main(arguments: list[str] | None = None) -> int:
    """Measure and print the table. Returns 0, or 1 with a sentence on standard error."""
    options = _options(arguments)
    try:
        result = asyncio.run(measure(num_jobs=options.jobs))
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(table(result))
    if options.json:
        with options.json.open("a") as file:
            file.write(json_line(result) + "\n")
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench-scale",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--jobs", type=int, default=200, metavar="N", help="jobs at rest, and in the storm (%(default)s)"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="append the result to this file, as one line of JSON"
    )
    options = parser.parse_args(arguments)
    if not 1 <= options.jobs <= 2000:
        parser.error(f"--jobs {options.jobs}: give 1 to 2000, which is what fits on one machine")
    if options.json and not options.json.absolute().parent.is_dir():
        # found here, it does not cost minutes of measuring
        parser.error(f"--json {options.json}: there is no directory {options.json.absolute().parent}")
    return options
