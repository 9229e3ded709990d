"""The options of `bench/against_trl.py`. No slow import here: --help answers at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_bench.options import a_parser, add_json, add_pairs, named_cases, require_folder, require_pairs
from grpo_trl.cases import CASES


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure. `processes` are the values of trainer.processesPerNode beside the default."""

    num_pairs: int
    cases: tuple[str, ...]
    processes: tuple[int, ...]
    limit_seconds: float
    json: Path | None


def parse_options(description: str, arguments: Sequence[str] | None = None) -> Options:
    """Read the command line. --help and a wrong option end the process."""
    parser = a_parser(description)
    add_pairs(parser, default=2, what="how often each side is run")
    parser.add_argument("--cases", default=",".join(CASES), metavar="NAME,...", help="(%(default)s)")
    parser.add_argument(
        "--processes",
        default="1,2",
        metavar="N,...",
        help="ours also with so many processes; 0 leaves them out (%(default)s)",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=9.0,
        metavar="M",
        help="begin no pair that would end later; a run that takes longer is an error (%(default)s)",
    )
    add_json(parser, what="every step to this file, as one line of JSON")
    found = parser.parse_args(arguments)
    require_pairs(parser, found.pairs)
    cases = named_cases(parser, found.cases, cases=CASES)
    if not all(number.isdecimal() for number in found.processes.split(",")):
        parser.error(f"--processes {found.processes}: give numbers with commas between them, or 0")
    require_folder(parser, found.json)
    return Options(
        num_pairs=found.pairs,
        cases=cases,
        processes=tuple(sorted({int(number) for number in found.processes.split(",")} - {0})),
        limit_seconds=60 * found.minutes,
        json=found.json,
    )
