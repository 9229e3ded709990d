"""Shows a result as a table for people, and as one line of JSON for a file. Pure."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from grpo_bench.machine import Circumstances
from grpo_bench.pairs import Comparison


@dataclass(frozen=True)
class Result:
    """The result of a bench. `first` and `second` are the names of its two ways."""

    bench: str
    first: str
    second: str
    comparisons: Sequence[Comparison]
    circumstances: Circumstances

    @property
    def num_pairs(self) -> int:
        """How often each way was run."""
        return len(self.comparisons[0].ratios)


def table(result: Result) -> str:
    """A table with a row for each quantity, below a line that says where it was measured."""
    rows = [("", result.first, result.second, "ratio", "lowest to highest")]
    rows += [
        (
            found.quantity,
            _three_digits(found.first),
            _three_digits(found.second),
            f"{found.ratio:.2f}",
            f"{min(found.ratios):.2f} to {max(found.ratios):.2f}",
        )
        for found in result.comparisons
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        f"{result.bench}: medians of {result.num_pairs} pairs; the ratio is first : second",
        str(result.circumstances),
    ]
    for quantity, *cells in rows:
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("   ".join([quantity.ljust(widths[0]), *aligned]))
    return "\n".join(lines)


def json_line(result: Result) -> str:
    """The whole result, with the ratio of every pair."""
    return json.dumps(
        {
            "bench": result.bench,
            **asdict(result.circumstances),
            "first": result.first,
            "second": result.second,
            "num_pairs": result.num_pairs,
            "quantities": {
                found.quantity: {
                    "first": float(_three_digits(found.first)),
                    "second": float(_three_digits(found.second)),
                    "ratio": round(found.ratio, 3),
                    "ratios": [round(ratio, 3) for ratio in found.ratios],
                }
                for found in result.comparisons
            },
        }
    )


def _three_digits(amount: float) -> str:
    """Three significant digits: further ones are noise."""
    return f"{amount:.3g}" if amount < 999.5 else f"{amount:.0f}"
