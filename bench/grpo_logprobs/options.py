"""The options of `bench/logprobs.py`. No slow import here: --help answers at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_bench.options import a_parser, add_json, add_pairs, named_cases, require_folder, require_pairs
from grpo_logprobs.cases import CASES


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure, and where."""

    num_pairs: int
    cases: tuple[str, ...]
    device: str
    json: Path | None


def parse_options(description: str, arguments: Sequence[str] | None = None) -> Options:
    """Read the command line. --help and a wrong option end the process."""
    parser = a_parser(description)
    add_pairs(parser, default=3, what="how often each way is run")
    parser.add_argument("--cases", default="tiny,27M", metavar="NAME,...", help="(%(default)s)")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="(%(default)s)")
    add_json(parser, what="each result to this file, as a line of JSON")
    found = parser.parse_args(arguments)
    require_pairs(parser, found.pairs)
    cases = named_cases(parser, found.cases, cases=CASES)
    require_folder(parser, found.json)
    return Options(num_pairs=found.pairs, cases=cases, device=found.device, json=found.json)
