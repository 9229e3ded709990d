"""Where the seconds of a step go, who is idle meanwhile, and which split of GPUs would shorten it."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpo_runtime.report.sync_cost import ENGINES

_PHASE = "time/{}_seconds"
PHASES = ("sync", "generate", "score", "train", "digest")
"""In their order in a step; `other` is what is left of it."""
MIN_GAIN = 0.05
"""A split that saves less than this share of a step is not suggested."""
_WARM_UP_STEPS = 1
"""The first step of an attempt compiles and fills caches."""


@dataclass(frozen=True)
class StepSeconds:
    """Medians over steps, in seconds."""

    step: float
    phases: Mapping[str, float]
    """By phase, those of PHASES that the run measured, and `other`."""
    num_engines: int | None = None
    """The median of the engines that sampled, which `kubectl scale` changes; None where no step says it."""


@dataclass(frozen=True)
class Split:
    """Training ranks and engines, each on a GPU of its own, and the seconds of a step with them."""

    num_ranks: int
    num_engines: int
    step_seconds: float


def step_seconds(steps: Sequence[Mapping[str, float]]) -> StepSeconds | None:
    """The medians over `steps`, which are the metrics of each step in order, without the first. None when no
    step was measured."""
    measured = [step for step in steps if "step_time" in step]
    measured = measured[_WARM_UP_STEPS:] or measured
    if not measured:
        return None
    phases = {
        phase: statistics.median(step.get(_PHASE.format(phase), 0.0) for step in measured) for phase in PHASES
    }
    total = statistics.median(step["step_time"] for step in measured)
    phases = {phase: seconds for phase, seconds in phases.items() if seconds > 0}
    phases["other"] = max(0.0, total - sum(phases.values()))
    engines = [step[ENGINES] for step in measured if ENGINES in step]
    return StepSeconds(total, phases, int(statistics.median_low(engines)) if engines else None)


def idle_seconds(seconds: StepSeconds) -> dict[str, float]:
    """Seconds of a step in which trainer and engines, which have GPUs of their own, wait for one another.

    The trainer waits for completions and rewards; engines wait for rewards and for the update. A sync keeps
    both busy.
    """
    busy_trainer = sum(seconds.phases.get(phase, 0.0) for phase in ("sync", "train", "digest"))
    busy_engines = sum(seconds.phases.get(phase, 0.0) for phase in ("sync", "generate"))
    return {"trainer": seconds.step - busy_trainer, "engines": seconds.step - busy_engines}


def better_split(
    seconds: StepSeconds, *, num_ranks: int, num_engines: int, gpus_per_engine: int
) -> Split | None:
    """The split of the same GPUs with the shortest step; None when it saves too little.

    It assumes that generation is as many times as fast as there are engines and training as there are ranks,
    which is the most that can be hoped for.
    """
    num_gpus = num_ranks + num_engines * gpus_per_engine
    generate, train = (seconds.phases.get(phase, 0.0) for phase in ("generate", "train"))
    rest = seconds.step - generate - train
    splits = [
        Split(ranks, engines, rest + generate * num_engines / engines + train * num_ranks / ranks)
        for engines in range(1, (num_gpus - 1) // gpus_per_engine + 1)
        for ranks in [num_gpus - engines * gpus_per_engine]
    ]
    best = min(splits, key=lambda split: split.step_seconds, default=None)
    if best is None or best.step_seconds > (1 - MIN_GAIN) * seconds.step:
        return None
    return best
