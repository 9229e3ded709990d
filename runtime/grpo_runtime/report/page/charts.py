"""Which metrics are drawn, in which chart and under which heading. This is the only list of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase


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
