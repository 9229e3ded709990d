"""The curves of a run's page: each value stands at its own step."""

import json
import re
from typing import Any

from grpo_runtime.report.charts import Chart, curves
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
    html = curves(Chart("Reward", metrics), RECORDS, present=metrics)
    arguments = html.partition("Plotly.newPlot(")[2]
    decoder = json.JSONDecoder()
    traces, end = decoder.raw_decode(arguments, arguments.index("["))
    layout: dict[str, Any]
    layout, _ = decoder.raw_decode(arguments, re.compile(r"\{").search(arguments, end).start())  # type: ignore[union-attr]
    found = {trace["name"]: dict(zip(trace["x"], trace["y"], strict=True)) for trace in traces}
    return found, [shape["x0"] for shape in layout["shapes"]]


def test_a_value_is_drawn_at_the_step_that_had_it_also_where_other_steps_have_none() -> None:
    found, _ = drawn("reward", "eval/reward")
    assert found == {
        "reward": {1: 0.1, 2: 0.3, 3: 0.2, 4: 0.7},
        "eval/reward": {1: 0.4, 3: 0.6},
    }


def test_a_line_stands_at_the_first_step_of_another_attempt() -> None:
    _, lines = drawn("reward")
    assert lines == [3]
