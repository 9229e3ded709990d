"""Shows the result as tables for people, and as one line of JSON with every step. Pure."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from grpo_bench.machine import Circumstances
from grpo_trl.cases import Case
from grpo_trl.steps import PHASES, Step


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """What each side took: its name -> the steps of each of its runs. TRL is the first."""

    case: Case
    num_parameters: int
    runs: Mapping[str, Sequence[Sequence[Step]]]

    @property
    def trl(self) -> str:
        """The name of TRL's side."""
        return next(iter(self.runs))

    def ratios(self, side: str) -> list[float]:
        """TRL : `side`, of the medians of each pair of runs."""
        return [
            _median_seconds(first) / _median_seconds(second)
            for first, second in zip(self.runs[self.trl], self.runs[side], strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of the bench. `load_average` is that of the machine when it began: others may use it."""

    cases: Sequence[CaseResult]
    load_average: float
    circumstances: Circumstances


def tables(result: Result) -> str:
    """A table for each case, below a line that says where they were measured."""
    lines = [
        "seconds of a step: medians; ratio is TRL : ours, and above 1 ours is faster",
        f"{result.circumstances}; load average {result.load_average:.1f} before",
    ]
    for one in result.cases:
        lines += ["", *_table(one)]
    return "\n".join(lines)


def json_line(result: Result) -> str:
    """The whole result, with every step."""
    return json.dumps(
        {
            "bench": "trl",
            **asdict(result.circumstances),
            "load_average": result.load_average,
            "cases": [
                {
                    **asdict(one),
                    "ratios": {side: one.ratios(side) for side in one.runs if side != one.trl},
                }
                for one in result.cases
            ],
        }
    )


def _table(one: CaseResult) -> list[str]:
    case = one.case
    rows: list[Sequence[str]] = [
        (case.name, "step", "low to high", *PHASES, "rest", "ratio", "low to high", "goal")
    ]
    for side, runs in one.runs.items():
        steps = [step for run in runs for step in run]
        seconds = [step.seconds for step in steps]
        ratios = one.ratios(side)
        ratio = (f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}")
        rows.append(
            (
                side,
                _cell(statistics.median(seconds)),
                f"{_cell(min(seconds))} to {_cell(max(seconds))}",
                *(_phase_cell(steps, phase) for phase in PHASES),
                _cell(statistics.median(step.rest for step in steps)),
                *(("", "") if side == one.trl else ratio),
                f">= {case.goal:g}" if "default" in side else "",
            )
        )
    num_pairs = len(one.runs[one.trl])
    return [
        f"{one.num_parameters / 1e6:.1f} M parameters, {case.num_completions} completions of "
        f"{case.completion_tokens} tokens ({case.prompts_per_step} prompts of {case.prompt_tokens} tokens x "
        f"{case.group_size}); {num_pairs} pairs of runs with {case.num_steps} steps each",
        *_aligned(rows),
    ]


def _phase_cell(steps: Sequence[Step], phase: str) -> str:
    told = [step.phases[phase] for step in steps if phase in step.phases]
    return _cell(statistics.median(told)) if told else "-"


def _median_seconds(steps: Sequence[Step]) -> float:
    return statistics.median(step.seconds for step in steps)


def _cell(seconds: float) -> str:
    return f"{seconds:.4f}" if seconds < 1 else f"{seconds:.3g}"


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
