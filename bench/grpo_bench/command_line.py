"""What the scripts have in common: their options, and measuring two ways with a line on each pair."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from grpo_bench.errors import BenchError
from grpo_bench.machine import circumstances
from grpo_bench.options import a_parser, add_json, add_pairs, require_folder, require_pairs
from grpo_bench.pairs import Pair, Way, alternate, compare
from grpo_bench.report import Result, json_line, table

_HOW_TO_READ_IT = """
The ratio is how many times as much the first way takes as the second: 2.00 means that the second takes half.
It is the median over pairs of runs, with the lowest and the highest pair. Compare ratios, and not seconds,
with those of another machine or another day.
"""

TwoWays = Callable[[], AbstractContextManager[tuple[Way, Way]]]
"""A context with the two ways to compare; on leaving it ends the processes it has started for them."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command line."""

    num_pairs: int
    json: Path | None


def parse_options(description: str, *, num_pairs: int) -> Options:
    """Read the options of a script; `num_pairs` is the default of --pairs. --help ends the process."""
    parser = a_parser(description + _HOW_TO_READ_IT)
    add_pairs(parser, default=num_pairs, what="how often each way is run; more make the ratio steadier")
    add_json(parser, what="the result to this file, as one line of JSON")
    found = parser.parse_args()
    require_pairs(parser, found.pairs)
    require_folder(parser, found.json)
    return Options(num_pairs=found.pairs, json=found.json)


def run(bench: str, two_ways: TwoWays, *, options: Options) -> int:
    """Measure and print the table. Returns 0, or 1 with a sentence when the ways cannot be compared."""
    pairs: list[Pair] = []
    try:
        with two_ways() as (first, second):
            for pair in alternate(first, second, num_pairs=options.num_pairs):
                pairs.append(pair)
                _print_progress(f"pair {len(pairs)} of {options.num_pairs}: {_describe(pair)}")
    except BenchError as error:
        _print_progress(f"error: {error}")
        return 1
    result = Result(bench, first.name, second.name, compare(pairs), circumstances())
    print(table(result))
    if options.json:
        with options.json.open("a") as file:
            file.write(json_line(result) + "\n")
    return 0


def _describe(pair: Pair) -> str:
    return ", ".join(
        f"{quantity} {pair.first[quantity]:.3g} : {pair.second[quantity]:.3g}" for quantity in pair.first
    )


def _print_progress(sentence: str) -> None:
    """Print to standard error, so that standard output has only the table."""
    print(sentence, file=sys.stderr, flush=True)
