"""The report of ten minutes on a GPU as a table for people. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_bench.bounded import OK

BEGIN, END = "<!-- make gpu-day-table -->", "<!-- end -->"
"""Between them a page has the table."""
_OF_THE_DRIVER = ("copy", "host copy")
"""Rates of `bench/gpu/sync.py` in which torch computes nothing."""

Line = Mapping[str, Any]
"""What a script has written as JSON."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    result: str
    holds_for: str
    """Which versions of torch."""


def rows_of(parts: Sequence[Line], *, torch: str) -> list[Row]:
    """The rows of all parts, in their order. One that failed has a row that says so, beside what it found."""
    only = f"torch {torch} only"
    rows: list[Row] = []
    for part in parts:
        for line in part["results"]:
            rows += _rows_of_line(line, only=only)
        if part["outcome"] != OK:
            rows.append(Row(part["name"], part["outcome"], only))
    return rows


def torch_of_the_image(requirements: str) -> str:
    """The version that the requirements of the CUDA image pin."""
    found = re.search(r"^torch==(\S+)", requirements, flags=re.MULTILINE)
    assert found, "the CUDA image has no torch"
    return found[1]


def with_table(page: str, report: Line) -> str:
    """The page with the table of the report in the place of the one before. Raises ValueError without a
    place."""
    before, found, rest = page.partition(BEGIN)
    _, has_end, after = rest.partition(END)
    if not (found and has_end):
        raise ValueError(f"the page has no place for the table: add {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{markdown(report)}\n{END}{after}"


def markdown(report: Line) -> str:
    """Where it was measured, and the table."""
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    where = f"one {report['device']} ({report['memory']}), driver {report['driver']}, {report['cpu']}"
    head = (
        f"On {report['date']} at {report['commit']}: {where}; {versions}. The image has torch "
        f"{report['torch_of_the_image']}."
    )
    cells = [("what", "result", "holds for"), ("---", "---", "---")]
    cells += [(row["what"], row["result"], row["holds_for"]) for row in report["rows"]]
    return "\n".join([head, "", *(f"| {' | '.join(row)} |" for row in cells)])


def _rows_of_line(line: Line, *, only: str) -> Iterable[Row]:
    if line["bench"] == "tests":
        return [Row("tests that need a GPU", _of_tests(line), only)]
    if line["bench"] == "gpu/learner":
        return [Row(f"a step of {line['size']}, {line['way']}", _of_step(line), only)]
    if line["bench"] == "gpu/sync":
        size = f"{line['num_bytes'] / 1e9:.3g} GB"
        return [
            Row(f"{way}, {size}", f"{rate:,.1f} GB/s", "any torch" if way in _OF_THE_DRIVER else only)
            for way, rate in line["gb_per_second"].items()
        ]
    # two ways in turn
    return [
        Row(
            f"{line['bench']}, {quantity}: {line['first']}, {line['second']}",
            f"{found['first']}, {found['second']}: ratio {found['ratio']:.2f} "
            f"({min(found['ratios']):.2f} to {max(found['ratios']):.2f})",
            only,
        )
        for quantity, found in line["quantities"].items()
    ]


def _of_tests(line: Line) -> str:
    said = f"{line['num_passed']} passed, {len(line['skipped'])} skipped, {len(line['failed'])} failed"
    return ": ".join([said, *([", ".join(line["failed"])] if line["failed"] else [])])


def _of_step(line: Line) -> str:
    share = "" if line["share"] is None else f", {line['share']:.1%} of the peak"
    return (
        f"{line['seconds']:.3g} s, {line['tokens_per_second']:,.0f} tokens/s{share}; "
        f"{line['peak_bytes'] / 2**30:.1f} GiB, planned {line['planned_bytes'] / 2**30:.1f}"
    )
