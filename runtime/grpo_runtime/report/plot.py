"""A run as text for the terminal: the curve of its reward, and what its weight syncs cost.

Imports the standard library only: `make demo` draws curves before any package is installed.
"""

from collections.abc import Sequence
from pathlib import Path

_LABEL_WIDTH = 7
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character by row and column: 2 x 4 dots in each."""


def plot_run(path: Path, *, width: int = 72) -> str:
    """The reward of each step of the run whose metrics are at `path`, as text of `width` columns, and below
    it a line about its weight syncs."""
    from grpo_runtime.report.metrics_file import METRICS_FILE, read_metrics
    from grpo_runtime.report.phases import describe_syncs

    records = read_metrics(path / METRICS_FILE if path.is_dir() else path)
    rewards = {record.step: record.values["reward"] for record in records if "reward" in record.values}
    if not rewards:
        return f"no reward in any of {len(records)} steps" if records else "no step is finished yet"
    title = f"reward, steps {min(rewards)} to {max(rewards)}"
    curve = plot(list(rewards.values()), title=title, width=width)
    return "\n".join(filter(None, [curve, describe_syncs([record.values for record in records])]))


def plot(values: Sequence[float], *, title: str, width: int = 72, height: int = 8) -> str:
    """`values` from left to right as a curve of braille dots with a title, `width` columns in all.

    If there are more values than dots, a dot is the mean of several values.
    """
    low, high = min(values), max(values)
    labels = [f"{high:{_LABEL_WIDTH}.3f}", *[" " * _LABEL_WIDTH] * (height - 2), f"{low:{_LABEL_WIDTH}.3f}"]
    curve = _curve(values, width=width - _LABEL_WIDTH - 1, height=height)
    body = [f"{label} {line}" for label, line in zip(labels, curve, strict=True)]
    return "\n".join([*body, f"{title:^{width}}".rstrip()])


def _curve(values: Sequence[float], *, width: int, height: int) -> list[str]:
    """`height` lines of `width` characters, the lowest value at the bottom."""
    columns, rows = 2 * width, 4 * height
    low, span = min(values), max(values) - min(values) or 1.0
    cells = [[0] * width for _ in range(height)]
    for column, value in enumerate(_means(values, columns)):
        row = rows - 1 - round((value - low) / span * (rows - 1))
        cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
    return ["".join(chr(0x2800 + cell) for cell in line) for line in cells]


def _means(values: Sequence[float], columns: int) -> list[float]:
    """`values` as `columns` numbers, from first to last: means where there are more, repeated where fewer."""
    count = len(values)
    means = []
    for column in range(columns):
        first = column * count // columns
        share = values[first : max(first + 1, (column + 1) * count // columns)]
        means.append(sum(share) / len(share))
    return means
