"""The charts of a run's page: which metrics are drawn where, and how Plotly draws them."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import plotly.io
from plotly.offline import get_plotlyjs

from grpo_runtime.report.metrics_file import MetricsRecord
from grpo_runtime.report.overlap import ENGINES, TRAINER


@dataclass(frozen=True)
class Chart:
    """Metrics that share axes."""

    title: str
    metrics: tuple[str, ...]
    """Names or patterns such as `rewards/*/mean`."""
    unit: str = ""
    is_logarithmic: bool = False
    is_stacked: bool = False
    """Whether the values of a step are bars on top of one another: parts of a whole."""

    def names(self, present: Iterable[str]) -> list[str]:
        """The metrics of `present` that belong here, pattern by pattern."""
        known = sorted(present, key=_by_number)
        return [name for pattern in self.metrics for name in known if fnmatchcase(name, pattern)]


def _by_number(name: str) -> tuple[str, int]:
    """10 comes after 9 where names end with a number."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or -1)


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
            Chart("KL of trainer and engines", ("sampling/mismatch_kl/*",), unit="nats"),
            Chart("Masked", ("mask_ratio/*",), unit="share"),
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
        "Environments",
        (
            Chart("Reward of an environment", ("env/*/reward", "eval/env/*/reward")),
            Chart("Turns of an episode", ("env/*/mean_turns",)),
            Chart("Sequences of an episode", ("env/*/mean_sequences",)),
            Chart("Tokens of a turn", ("env/*/turn_tokens",), unit="tokens"),
            Chart("Seconds of a turn", ("env/*/turn_seconds", "env/*/turn_waited_seconds"), unit="seconds"),
            Chart("Failures by whose they are", ("env/*/failures/*",), unit="failures"),
            Chart("What calls asked for and the job decides", ("env/*/overridden/*",), unit="calls"),
        ),
    ),
    Section(
        "Groups ahead",
        (
            Chart("Age of the groups", ("async/staleness/*",), unit="steps"),
            Chart("Groups by age", ("async/groups_by_staleness/*",), unit="groups", is_stacked=True),
            Chart("Begun and not trained", ("async/queued_groups", "async/running_groups"), unit="groups"),
            Chart("Left out", ("async/failed_groups", "async/dropped_groups"), unit="groups"),
        ),
    ),
    Section(
        "Speed",
        (
            Chart("Completion tokens a second", ("tokens_per_second", "async/tokens_per_busy_second")),
            Chart("Phases of a step", ("time/*_seconds",), unit="seconds"),
            Chart("Phases of a weight sync", ("sync/*_seconds",), unit="seconds"),
            Chart("Rate of a weight sync", ("sync/bytes_per_second",), unit="bytes a second"),
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
    "async/trainer_idle_seconds",
    "async/engine_idle_seconds",
    "async/engine_idle_share",
)
"""Numbers whose curve says nothing, or that another curve or the picture of who waited shows."""
WHO_WAITED = (
    Chart("What the trainer does", TRAINER, unit="share", is_stacked=True),
    Chart("What engines do", ENGINES, unit="share", is_stacked=True),
)
"""The picture of who waits for whom in asynchronous training, over what `overlap.pictured` makes of a run."""


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
    """A chart as HTML: a curve for each of its metrics, or its bars, and a line where another attempt
    began."""
    # plain dictionaries: Plotly's own classes check each value, which takes seconds for the curves of a run
    names = chart.names(present)
    traces = [_trace(chart, name, records) for name in names]
    has_own_range = chart.is_logarithmic or chart.is_stacked
    layout = {
        "title": {"text": chart.title, "font": {"size": 14}},
        "height": _HEIGHT_PIXELS,
        "template": plotly.io.templates["plotly_white"].to_plotly_json(),
        "margin": {"l": 56, "r": 12, "t": 40, "b": 36},
        "hovermode": "x unified",
        "barmode": "stack",
        "bargap": 0,
        "showlegend": len(names) > 1,
        "legend": {"orientation": "h", "traceorder": "normal", "y": -0.2, "font": {"size": 10}},
        "yaxis": {
            "title": {"text": chart.unit},
            "type": "log" if chart.is_logarithmic else "linear",
            "exponentformat": "SI" if chart.unit.startswith("bytes") else "B",
            "range": None if has_own_range else _range_of_constant({y for one in traces for y in one["y"]}),
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


def _trace(chart: Chart, name: str, records: Sequence[MetricsRecord]) -> dict[str, Any]:
    points = [(record.step, record.values[name]) for record in records if name in record.values]
    steps, values = zip(*points, strict=True)
    trace = {"name": name, "x": steps, "y": values}
    if chart.is_stacked:
        return {"type": "bar", **trace}
    mode = "lines" if len(steps) > 1 else "markers"
    return {"type": "scatter", **trace, "mode": mode, "line": {"width": 1.5}}


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
