"""A case as a row of a Markdown table, and as a line of JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict, astuple

from grpo_bench.machine import circumstances
from grpo_learning.cases import Case
from grpo_learning.gates import Outcome


def header() -> str:
    """The first lines of the table."""
    return (
        "| case | steps | learning rate | gate | first steps | last steps | staleness | seconds | |\n"
        "|---|---:|---:|---|---|---|---|---:|---|"
    )


def row(case: Case, outcomes: Sequence[Outcome], *, seconds: float, misses: Sequence[str]) -> str:
    """One case, with a number for each seed."""
    first, last, staleness = (
        ", ".join(f"{value:.3f}" for value in values)
        for values in zip(*(astuple(outcome) for outcome in outcomes), strict=True)
    )
    outcome = "; ".join(misses) or "reached"
    return (
        f"| {case.name} | {case.steps} | {case.learning_rate:g} | {case.gate} | {first} | {last} | "
        f"{staleness if case.max_staleness else ''} | {seconds:.0f} | {outcome} |"
    )


def json_line(case: Case, outcomes: Sequence[Outcome], *, seconds: float, misses: Sequence[str]) -> str:
    """The same for a program, with the machine and the commit."""
    return json.dumps(
        {
            "bench": "learning",
            "case": case.name,
            "gate": str(case.gate),
            "outcomes": [asdict(outcome) for outcome in outcomes],
            "seconds": round(seconds, 1),
            "misses": list(misses),
            "circumstances": asdict(circumstances()),
        }
    )
