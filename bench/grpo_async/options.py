"""The options of `bench/asynchronous.py`. No slow import here: --help answers at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_async.cases import CASES, WARM_UP_STEPS
from grpo_bench.options import a_parser, add_json, add_pairs, named_cases, require_folder, require_pairs


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure. `steps` are those of each synchronous run; None for those of its case."""

    num_pairs: int
    cases: tuple[str, ...]
    steps: int | None
    json: Path | None


def parse_options(description: str, arguments: Sequence[str] | None = None) -> Options:
    """Read the command line. --help and a wrong option end the process."""
    parser = a_parser(description)
    add_pairs(parser, default=2, what="how often each way is run")
    parser.add_argument("--cases", default=",".join(CASES), metavar="A,B", help="which cases (%(default)s)")
    steps = ", ".join(f"{case.steps} in {name}" for name, case in CASES.items())
    parser.add_argument("--steps", type=int, metavar="N", help=f"of a synchronous run ({steps})")
    add_json(parser, what="every step to this file, as a line of JSON for each case")
    found = parser.parse_args(arguments)
    require_pairs(parser, found.pairs)
    cases = named_cases(parser, found.cases, cases=CASES)
    if found.steps is not None and found.steps <= WARM_UP_STEPS:
        parser.error(f"--steps {found.steps}: the first {WARM_UP_STEPS} are not counted")
    require_folder(parser, found.json)
    return Options(num_pairs=found.pairs, cases=cases, steps=found.steps, json=found.json)
