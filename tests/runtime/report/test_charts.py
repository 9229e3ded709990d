"""The curves of a run's page: each value stands at its own step."""

import json
import re
from collections.abc import Sequence
from typing import Any

from grpo_runtime.report.charts import SECTIONS, Chart, curves
from grpo_runtime.report.metrics_file import MetricsRecord

RECORDS = [
    MetricsRecord(attempt=attempt, step=step, time=0.0, values=values)
    for attempt, step, values in [
        (1, 1, {"reward": 0.1, "eval/reward": 0.4}),
        (1, 2, {"reward": 0.3}),
        (2, 3, {"reward": 0.2, "eval/reward": 0.6}),
        (2, 4, {"reward": 0.7}),
    ]
]


def drawn(*metrics: str) -> tuple[dict[str, dict[int, float]], list[float]]:
    """Value by step of each curve, and where there are vertical lines."""
    traces, layout = plotted(Chart("Reward", metrics), RECORDS)
    found = {trace["name"]: dict(zip(trace["x"], trace["y"], strict=True)) for trace in traces}
    return found, [shape["x0"] for shape in layout["shapes"]]


def plotted(chart: Chart, records: Sequence[MetricsRecord]) -> tuple[list[Any], dict[str, Any]]:
    """The traces and the layout that Plotly is given."""
    html = curves(chart, records, present=list({name for record in records for name in record.values}))
    arguments = html.partition("Plotly.newPlot(")[2]
    decoder = json.JSONDecoder()
    traces, end = decoder.raw_decode(arguments, arguments.index("["))
    layout: dict[str, Any]
    layout, _ = decoder.raw_decode(arguments, re.compile(r"\{").search(arguments, end).start())  # type: ignore[union-attr]
    return traces, layout


def test_a_value_is_drawn_at_the_step_that_had_it_also_where_other_steps_have_none() -> None:
    found, _ = drawn("reward", "eval/reward")
    assert found == {
        "reward": {1: 0.1, 2: 0.3, 3: 0.2, 4: 0.7},
        "eval/reward": {1: 0.4, 3: 0.6},
    }


def test_a_line_stands_at_the_first_step_of_another_attempt() -> None:
    _, lines = drawn("reward")
    assert lines == [3]


def test_numbers_of_groups_by_age_are_bars_on_top_of_one_another_from_the_youngest_on() -> None:
    ages = [{0: 2.0, 10: 6.0}, {2: 8.0}]
    records = [
        MetricsRecord(
            attempt=1,
            step=step,
            time=0.0,
            values={f"async/groups_by_staleness/{age}": number for age, number in by_age.items()},
        )
        for step, by_age in enumerate(ages, start=1)
    ]
    [chart] = [chart for section in SECTIONS for chart in section.charts if chart.is_stacked]
    traces, layout = plotted(chart, records)
    assert layout["barmode"] == "stack"
    assert [(trace["type"], trace["name"][-2:], trace["x"], trace["y"]) for trace in traces] == [
        ("bar", "/0", [1], [2.0]),
        ("bar", "/2", [2], [8.0]),
        ("bar", "10", [1], [6.0]),
    ]
