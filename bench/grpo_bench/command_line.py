"""What the scripts have in common: their options, and measuring two ways with a word on each pair."""

import argparse
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from grpo_bench.errors import BenchError
from grpo_bench.machine import circumstances
from grpo_bench.pairs import Pair, Way, alternate, compare
from grpo_bench.report import Result, json_line, table

_HOW_TO_READ_IT = """
The ratio is how many times as much the first way takes as the second: 2.00 means that the second takes half.
It is the median over pairs of runs, with the lowest and the highest pair. Compare ratios, and not seconds,
with those of another machine or another day.
"""

TwoWays = Callable[[], AbstractContextManager[tuple[Way, Way]]]
"""Gives the two ways, and ends what it has started for them."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a person asked for."""

    num_pairs: int
    json: Path | None


def parse_options(description: str, *, num_pairs: int) -> Options:
    """The options of a script; `num_pairs` is what it runs when nobody says. --help ends the process."""
    parser = argparse.ArgumentParser(
        description=description + _HOW_TO_READ_IT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--pairs",
        dest="num_pairs",
        type=int,
        default=num_pairs,
        metavar="N",
        help="how often each way is run; more make the ratio steadier (%(default)s)",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="append the result to this file, as one line of JSON"
    )
    options = parser.parse_args()
    if options.num_pairs < 1:
        parser.error(f"--pairs {options.num_pairs}: one pair is the least")
    if options.json and not options.json.absolute().parent.is_dir():
        # now, and not after minutes of measuring
        parser.error(f"--json {options.json}: there is no directory {options.json.absolute().parent}")
    return Options(**vars(options))


def run(bench: str, two_ways: TwoWays, *, options: Options) -> int:
    """Measure and print the table; 0, or 1 with a sentence when there is nothing to compare."""
    pairs: list[Pair] = []
    try:
        with two_ways() as (first, second):
            for pair in alternate(first, second, num_pairs=options.num_pairs):
                pairs.append(pair)
                _tell(f"pair {len(pairs)} of {options.num_pairs}: {_in_words(pair)}")
    except BenchError as error:
        _tell(f"error: {error}")
        return 1
    result = Result(bench, first.name, second.name, compare(pairs), circumstances())
    print(table(result))
    if options.json:
        with options.json.open("a") as file:
            file.write(json_line(result) + "\n")
    return 0


def _in_words(pair: Pair) -> str:
    return ", ".join(
        f"{quantity} {pair.first[quantity]:.3g} : {pair.second[quantity]:.3g}" for quantity in pair.first
    )


def _tell(sentence: str) -> None:
    """Progress goes to standard error, so that the table alone can be kept."""
    print(sentence, file=sys.stderr, flush=True)
