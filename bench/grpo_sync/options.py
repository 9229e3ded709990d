"""The options of `bench/sync.py`. No slow import here: --help answers at once."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_bench.options import a_parser, add_json, require_folder

_LARGEST_MB = 4000
_MOST = 8


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure. Empty `backends` are all, of which vLLM engines have Gloo and SharedMemory. Without
    `receivers` or `engines` that part is left out."""

    sizes: tuple[int, ...]
    receivers: tuple[int, ...]
    engines: tuple[int, ...]
    backends: tuple[str, ...]
    json: Path | None


def parse_options(description: str, arguments: Sequence[str] | None = None) -> Options:
    """Read the command line. --help and a wrong option end the process."""
    parser = a_parser(description)
    parser.add_argument(
        "--sizes", default="1,100,1000", metavar="MB,...", help="what travels, in MB (%(default)s)"
    )
    parser.add_argument(
        "--receivers",
        default="1,2,4",
        metavar="N,...",
        help="how many receivers without vLLM; 0 leaves them out (%(default)s)",
    )
    parser.add_argument(
        "--engines",
        default="1,2",
        metavar="N,...",
        help="how many vLLM engines, for sizes up to 100 MB; 0 leaves them out (%(default)s)",
    )
    parser.add_argument(
        "--backends",
        default="",
        metavar="NAME,...",
        help="only these (all; of those with vLLM gloo, shared_memory)",
    )
    add_json(parser, what="every figure to this file, as one line of JSON")
    found = parser.parse_args(arguments)
    options = Options(
        sizes=_numbers(parser, "--sizes", found.sizes, highest=_LARGEST_MB),
        receivers=_numbers(parser, "--receivers", found.receivers, highest=_MOST),
        engines=_numbers(parser, "--engines", found.engines, highest=_MOST),
        backends=tuple(filter(None, found.backends.split(","))),
        json=found.json,
    )
    if not options.sizes or not options.receivers + options.engines:
        parser.error("there is nothing to measure: give --sizes, and --receivers or --engines")
    require_folder(parser, options.json)
    return options


def _numbers(parser: argparse.ArgumentParser, option: str, text: str, *, highest: int) -> tuple[int, ...]:
    """Different numbers from 1 to `highest`, in order; none for 0."""
    if text == "0":
        return ()
    parts = text.split(",")
    if not all(part.isdecimal() and 1 <= int(part) <= highest for part in parts):
        parser.error(f"{option} {text}: give numbers from 1 to {highest}, with commas between them")
    return tuple(sorted({int(part) for part in parts}))
