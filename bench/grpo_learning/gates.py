"""What a run must reach, decided from the rewards of its steps. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

WINDOW = 10
"""Steps whose mean is the reward at the beginning or the end of a run."""


@dataclass(frozen=True)
class Outcome:
    """The rewards of one run at its beginning and its end."""

    first: float
    last: float
    staleness: float = 0.0
    """The mean age of completions when they were trained, in steps."""

    @property
    def gain(self) -> float:
        return self.last - self.first


def outcome_of(rewards: Sequence[float], *, window: int = WINDOW, staleness: float = 0.0) -> Outcome:
    """The means of the first and the last `window` steps. Raises ValueError where there are fewer."""
    if len(rewards) < 2 * window:
        raise ValueError(f"{len(rewards)} steps are too few for two windows of {window}")
    first, last = statistics.fmean(rewards[:window]), statistics.fmean(rewards[-window:])
    return Outcome(first, last, staleness)


@dataclass(frozen=True)
class Gate:
    """Bounds of the runs of a case, one for each seed; those that are None do not count."""

    mean_at_least: float | None = None
    each_at_least: float | None = None
    each_at_most: float | None = None
    gain_at_least: float | None = None
    staleness_at_least: float | None = None
    within: float | None = None
    """How far below that of the case beside it the mean may be."""

    def misses(self, outcomes: Sequence[Outcome], *, beside: Sequence[Outcome] = ()) -> list[str]:
        """A sentence for each bound that is missed; `beside` are the runs of the case that this one is
        compared with."""
        lasts = [outcome.last for outcome in outcomes]
        checks = [
            ("the mean", statistics.fmean(lasts), self.mean_at_least, False),
            ("the lowest", min(lasts), self.each_at_least, False),
            ("the highest", max(lasts), self.each_at_most, True),
            ("the lowest gain", min(outcome.gain for outcome in outcomes), self.gain_at_least, False),
            (
                "the lowest staleness",
                min(outcome.staleness for outcome in outcomes),
                self.staleness_at_least,
                False,
            ),
        ]
        if self.within is not None:
            other = statistics.fmean(outcome.last for outcome in beside)
            checks.append(("the mean", statistics.fmean(lasts), round(other - self.within, 3), False))
        return [
            f"{what} is {value:.3f}, which is {'above' if is_upper else 'below'} {bound:g}"
            for what, value, bound, is_upper in checks
            if bound is not None and (value > bound if is_upper else not value >= bound)
        ]

    def __str__(self) -> str:
        named = {
            "mean >=": self.mean_at_least,
            "each >=": self.each_at_least,
            "each <=": self.each_at_most,
            "gain >=": self.gain_at_least,
            "staleness >=": self.staleness_at_least,
            "within": self.within,
        }
        return ", ".join(f"{what} {bound:g}" for what, bound in named.items() if bound is not None)
