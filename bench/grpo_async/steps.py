"""What a run took, step by step, and how fast it was. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WINDOW = 5
"""Steps whose mean is the reward at a moment."""
PHASES = ("generate", "sync", "train")
"""What a trainer does in a step; `generate` is to wait for completions and rewards."""


@dataclass(frozen=True, kw_only=True)
class Logged:
    """A step as it was logged: when it ended, in seconds, and its metrics."""

    time: float
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of one way. `began` is when its first step did. `share_across`: of the tokens that were trained,
    the share of completions within which weights changed; None where that was not looked at."""

    began: float
    steps: Sequence[Logged]
    share_across: float | None = None

    @classmethod
    def of(cls, steps: Sequence[Logged], *, share_across: float | None = None) -> "Run":
        """The run with these steps."""
        began = steps[0].time - steps[0].values["step_time"]
        return cls(began=began, steps=steps, share_across=share_across)

    def seconds_until(self, step: int) -> float:
        """From the beginning of the first step to the end of step number `step`, counted from 1."""
        return self.steps[step - 1].time - self.began

    def mean(self, metric: str, *, after: int) -> float:
        """Of the steps that follow the first `after`; 0 where none has it."""
        found = self.values_of(metric, after=after)
        return statistics.fmean(found) if found else 0.0

    def values_of(self, metric: str, *, after: int, until: int | None = None) -> list[float]:
        """Of the steps that follow the first `after`, up to number `until`, those that have it."""
        return [step.values[metric] for step in self.steps[after:until] if metric in step.values]

    def reward_after(self, seconds: float) -> float:
        """The mean reward of the last WINDOW steps that have ended so long after the beginning."""
        ended = [step for step in self.steps if step.time - self.began <= seconds]
        return statistics.fmean(step.values["reward"] for step in ended[-WINDOW:]) if ended else 0.0


def speed(ends: Sequence[float], *, steps: int, warm_up: int) -> float:
    """Steps a second of the first `steps` steps but for those of the warm-up; `ends` are the times at which
    steps have ended."""
    return (steps - warm_up) / (ends[steps - 1] - ends[warm_up - 1])
