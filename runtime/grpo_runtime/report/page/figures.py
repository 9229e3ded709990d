"""Curves over steps as Plotly figures, in HTML that shares one copy of plotly.js."""

import itertools
from collections.abc import Sequence
from typing import Any

import plotly.io
from plotly.offline import get_plotlyjs

from grpo_runtime.report.metrics import MetricsRecord
from grpo_runtime.report.page.charts import Chart

_HEIGHT_PIXELS = 260


def library() -> str:
    """plotly.js itself, for a script element of the page."""
    return str(get_plotlyjs())


def curves(chart: Chart, records: Sequence[MetricsRecord], *, present: Sequence[str]) -> str:
    """A chart as HTML: a curve for each of its metrics, and a line where another attempt began."""
    # plain dictionaries: Plotly's own classes check each value, which takes seconds for the curves of a run
    traces: list[dict[str, Any]] = []
    names = chart.names(present)
    drawn: set[float] = set()
    for name in names:
        points = [(record.step, record.values[name]) for record in records if name in record.values]
        steps, values = zip(*points, strict=True)
        drawn.update(values)
        mode = "lines" if len(steps) > 1 else "markers"
        traces.append(
            {
                "type": "scatter",
                "name": name,
                "x": steps,
                "y": values,
                "mode": mode,
                "line": {"width": 1.5},
            }
        )
    layout = {
        "title": {"text": chart.title, "font": {"size": 14}},
        "height": _HEIGHT_PIXELS,
        "template": plotly.io.templates["plotly_white"].to_plotly_json(),
        "margin": {"l": 56, "r": 12, "t": 40, "b": 36},
        "hovermode": "x unified",
        "showlegend": len(names) > 1,
        "legend": {"orientation": "h", "y": -0.2, "font": {"size": 10}},
        "yaxis": {
            "title": {"text": chart.unit},
            "type": "log" if chart.is_logarithmic else "linear",
            "range": _range_of_constant(drawn) if not chart.is_logarithmic else None,
        },
        "shapes": [_vertical_line(step) for step in _first_steps_of_later_attempts(records)],
    }
    return str(
        plotly.io.to_html(
            {"data": traces, "layout": layout},
            validate=False,
            full_html=False,
            include_plotlyjs=False,
            config={"displaylogo": False, "displayModeBar": "hover", "responsive": True},
        )
    )


def _vertical_line(step: int) -> dict[str, Any]:
    return {
        "type": "line",
        **{"x0": step, "x1": step, "y0": 0, "y1": 1, "yref": "y domain"},
        "line": {"width": 1, "dash": "dot", "color": "#888"},
    }


def _range_of_constant(values: set[float]) -> list[float] | None:
    """An axis on which a single value can be read; Plotly's own would be from one below it to one above."""
    if len(values) != 1:
        return None
    (value,) = values
    return sorted((0.0, 2 * value)) if value else [0.0, 1.0]


def _first_steps_of_later_attempts(records: Sequence[MetricsRecord]) -> list[int]:
    pairs = itertools.pairwise(records)
    return [second.step for first, second in pairs if second.attempt != first.attempt]
