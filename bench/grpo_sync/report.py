"""Shows the result as tables for people, and as one line of JSON with every figure. Pure."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from grpo_bench.machine import Circumstances
from grpo_sync.amounts import (
    BROADCAST,
    COPY,
    FLOORS,
    GOAL_OF_ORCHESTRATION,
    Amounts,
    Case,
    EngineCase,
    load,
    median,
    percentile,
)

_PHASES = ("prepare", "start", "transfer", "finish", "total")
_FLEET_PHASES = ("pack", "pause", "init", "start", "transfer", "finish", "resume", "verify", "admit", "wall")
_FLOOR_NAMES = {COPY: "copy", BROADCAST: "broadcast"}


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a run. `load_average` is that of the machine when it began: others may use it."""

    cases: Sequence[Case]
    engine_cases: Sequence[EngineCase]
    load_average: float
    circumstances: Circumstances


def tables(result: Result) -> str:
    """Both tables, below a line that says where they were measured."""
    lines = [
        "weight sync: seconds, medians of all rounds but the first; load is not in finish, total and ratio",
        f"{result.circumstances}; load average {result.load_average:.1f} before",
    ]
    if result.cases:
        lines += ["", *_plain_table(result.cases)]
    if result.engine_cases:
        lines += ["", *_fleet_table(result.engine_cases)]
    return "\n".join(lines)


def json_line(result: Result) -> str:
    """The whole result, with every round."""
    return json.dumps(
        {
            "bench": "sync",
            **asdict(result.circumstances),
            "load_average": result.load_average,
            "receivers": [_plain_figures(case) for case in result.cases],
            "engines": [_fleet_figures(case) for case in result.engine_cases],
        }
    )


def _plain_table(cases: Sequence[Case]) -> list[str]:
    rows: list[Sequence[str]] = [
        ("to receivers", *_PHASES, "load", "GB/s", "floor", "ratio", "low to high", "goal", "first", "init")
    ]
    for case in cases:
        ratios = case.ratios(case.floor)
        rows.append(
            (
                f"{case.size_mb} MB {case.dtype} to {case.num_receivers}: {case.way}",
                *(_cell(case.median(phase)) for phase in (*_PHASES, "load")),
                f"{case.gb_per_second:.2f}",
                f"{_cell(case.median(case.floor))} {_FLOOR_NAMES[case.floor]}",
                f"{statistics.median(ratios):.2f}",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
                "" if case.goal is None else f"<= {case.goal:g}",
                _cell(case.first["total"]),
                _cell(case.first.get("init")),
            )
        )
    return _aligned(rows)


def _fleet_table(cases: Sequence[EngineCase]) -> list[str]:
    goals = [f"p{percent} (<= {goal:g})" for percent, goal in GOAL_OF_ORCHESTRATION.items()]
    rows: list[Sequence[str]] = [
        ("to vLLM engines", *_FLEET_PHASES, "load", *goals, "ratio", "goal", "first init")
    ]
    for case in cases:
        orchestration = case.orchestration()
        rows.append(
            (
                f"{case.size_mb} MB to {case.num_engines}: {case.backend}",
                *(_cell(median(case.rounds, phase)) for phase in _FLEET_PHASES),
                _cell(_median_of(load, case.rounds)),
                *(_cell(percentile(orchestration, percent)) for percent in GOAL_OF_ORCHESTRATION),
                f"{statistics.median(case.ratios()):.2f}",
                f"<= {case.goal:g}",
                _cell(case.first["init"]),
            )
        )
    return [
        *_aligned(rows),
        "p50 and p95 are of orchestration: all phases but pack, transfer and load. load is what finish takes",
        "more than start, which goes the same way and does nothing. ratio: transfer to a broadcast, or to a",
        "copy where one engine shares the memory; packing begins before it and goes on beside it.",
    ]


def _plain_figures(case: Case) -> Mapping[str, Any]:
    quantities = case.rounds[0].keys()
    return _rounded(
        {
            **asdict(case),
            "gb_per_second": case.gb_per_second,
            "medians": {quantity: case.median(quantity) for quantity in quantities},
            "ratios": {floor: statistics.median(case.ratios(floor)) for floor in FLOORS},
        }
    )


def _fleet_figures(case: EngineCase) -> Mapping[str, Any]:
    orchestration = case.orchestration()
    return _rounded(
        {
            **asdict(case),
            "goal": case.goal,
            "medians": {
                **{quantity: median(case.rounds, quantity) for quantity in case.rounds[0]},
                "load": _median_of(load, case.rounds),
            },
            "orchestration": {f"p{percent}": percentile(orchestration, percent) for percent in (50, 95)},
            "ratio": statistics.median(case.ratios()),
        }
    )


def _median_of(quantity: Callable[[Amounts], float], rounds: Sequence[Amounts]) -> float:
    return statistics.median(map(quantity, rounds))


def _rounded(value: Any) -> Any:
    """The same with six decimals: microseconds."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def _cell(seconds: float | None) -> str:
    """Three significant digits, and no more than four decimals."""
    if seconds is None:
        return "-"
    return f"{seconds:.4f}" if seconds < 0.1 else f"{seconds:.3g}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
        ).rstrip()
        for row in rows
    ]
