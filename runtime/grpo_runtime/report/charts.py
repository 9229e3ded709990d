"""The charts of a run's page: which metrics are drawn where, and how Plotly draws them."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import plotly.io
from plotly.offline import get_plotlyjs

from grpo_runtime.report.metrics_file import MetricsRecord


@dataclass(frozen=True)
class Chart:
    """Metrics that share axes."""

    title: str
    metrics: tuple[str, ...]
    """Names or patterns such as `rewards/*/mean`."""
    unit: str = ""
    is_logarithmic: bool = False

    def names(self, present: Iterable[str]) -> list[str]:
        """The metrics of `present` that belong here, pattern by pattern."""
        known = sorted(present)
        return [name for pattern in self.metrics for name in known if fnmatchcase(name, pattern)]


@dataclass(frozen=True)
class Section:
    """Charts under one heading."""

    title: str
    charts: tuple[Chart, ...]


SECTIONS: tuple[Section, ...] = (
    Section(
        "Reward",
        (
            Chart("Reward", ("reward", "eval/reward")),
            Chart("By function", ("rewards/*/mean",)),
            Chart("Spread within a step", ("reward_std", "rewards/*/std")),
            Chart("Groups that teach nothing", ("frac_reward_zero_std",), unit="share"),
            Chart("Steps in a row that teach nothing", ("steps_without_signal/*",), unit="steps"),
        ),
    ),
    Section(
        "Policy",
        (
            Chart("Loss", ("loss",)),
            Chart("Gradient norm", ("grad_norm",), is_logarithmic=True),
            Chart("Learning rate", ("learning_rate",)),
            Chart("Entropy", ("entropy",), unit="nats"),
            Chart("KL to the reference policy", ("kl",), unit="nats"),
            Chart("Clipped tokens", ("clip_ratio/*",), unit="share"),
            Chart(
                "Trainer beside engines: difference of logprobs",
                ("sampling/sampling_logp_difference/*",),
                unit="nats",
                is_logarithmic=True,
            ),
            Chart("Importance ratio", ("sampling/importance_sampling_ratio/*",)),
        ),
    ),
    Section(
        "Completions",
        (
            Chart("Length", ("completions/m*_length",), unit="tokens"),
            Chart("Cut at maxTokens", ("completions/clipped_ratio",), unit="share"),
            Chart("Taken from the journal", ("journal/replayed_samples",), unit="samples"),
        ),
    ),
    Section(
        "Speed",
        (
            Chart("Completion tokens a second", ("tokens_per_second",)),
            Chart("Phases of a step", ("time/*_seconds",), unit="seconds"),
            Chart("Phases of a weight sync", ("sync/*_seconds",), unit="seconds"),
            Chart("Engines", ("sync/engines", "sync/failed_engines")),
            Chart("Computed and padding tokens", ("batch/*_share",), unit="share"),
            Chart("Checkpoints", ("checkpoint/*seconds",), unit="seconds"),
        ),
    ),
)
NOT_DRAWN = (
    "completions/crc32",
    "num_tokens",
    "step_time",
    "sync/bytes",
    "sync/sent_bytes",
    "batch/micro_batches",
)
"""Numbers whose curve says nothing, or that another curve shows."""


def sections_for(present: Sequence[str]) -> list[Section]:
    """The sections with those charts that have something to draw, and a last one with a chart for each metric
    that no other chart has, such as a reward function's own."""
    kept = [
        Section(section.title, tuple(chart for chart in section.charts if chart.names(present)))
        for section in SECTIONS
    ]
    drawn = {name for section in SECTIONS for chart in section.charts for name in chart.names(present)}
    others = tuple(Chart(name, (name,)) for name in sorted(set(present) - drawn - set(NOT_DRAWN)))
    return [section for section in (*kept, Section("Other metrics", others)) if section.charts]


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
