"""The options of `bench/logprobs.py`. No slow import here: --help answers at once."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--pairs", type=int, default=3, metavar="N", help="how often each way is run (%(default)s)"
    )
    parser.add_argument("--cases", default=",".join(CASES), metavar="NAME,...", help="(%(default)s)")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="(%(default)s)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="append each result to this file, as a line of JSON"
    )
    found = parser.parse_args(arguments)
    if found.pairs < 1:
        parser.error(f"--pairs {found.pairs}: there must be at least one pair")
    cases = tuple(found.cases.split(","))
    if not set(cases) <= CASES.keys():
        parser.error(f"--cases {found.cases}: there are {', '.join(CASES)}")
    if found.json and not found.json.absolute().parent.is_dir():
        # found here, it does not cost minutes of measuring
        parser.error(f"--json {found.json}: there is no directory {found.json.absolute().parent}")
    return Options(num_pairs=found.pairs, cases=cases, device=found.device, json=found.json)
