"""Options that several scripts have. No slow import here: --help answers at once."""

import argparse
from collections.abc import Collection
from pathlib import Path


def a_parser(description: str) -> argparse.ArgumentParser:
    """One that prints the description as it is written."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_pairs(parser: argparse.ArgumentParser, *, default: int, what: str) -> None:
    """`--pairs`: how often each of two is run."""
    parser.add_argument("--pairs", type=int, default=default, metavar="N", help=f"{what} (%(default)s)")


def add_json(parser: argparse.ArgumentParser, *, what: str) -> None:
    """`--json`: a file, to which `what` says is appended."""
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"append {what}")


def require_pairs(parser: argparse.ArgumentParser, num_pairs: int) -> None:
    """End the process with a sentence when there is none."""
    if num_pairs < 1:
        parser.error(f"--pairs {num_pairs}: there must be at least one pair")


def require_folder(parser: argparse.ArgumentParser, json: Path | None) -> None:
    """End the process with a sentence when the file cannot be made. Found here, it does not cost minutes of
    measuring."""
    if json and not json.absolute().parent.is_dir():
        parser.error(f"--json {json}: there is no directory {json.absolute().parent}")


def named_cases(parser: argparse.ArgumentParser, text: str, *, cases: Collection[str]) -> tuple[str, ...]:
    """Those that `--cases` names. Ends the process with a sentence when there is no such case."""
    named = tuple(text.split(","))
    if not set(named) <= set(cases):
        parser.error(f"--cases {text}: there are {', '.join(cases)}")
    return named
