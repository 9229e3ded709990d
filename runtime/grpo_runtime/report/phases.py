"""Where the seconds of a step go: how they are measured, who is idle meanwhile, which split of GPUs would
shorten the step, and what its weight sync costs. Standard library only: `grpo-runtime plot` reads it.
"""

import contextlib
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

STEP_TIME, PHASE = "step_time", "time/{}_seconds"
PHASES = ("sync", "generate", "score", "train", "digest")
"""In their order in a step; `other` is what is left of it."""
MIN_GAIN = 0.05
"""A split that saves less than this share of a step is not suggested."""
_WARM_UP_STEPS = 1
"""The first step of an attempt compiles and fills caches."""
ENGINES = "sync/engines"
PAUSED = "sync/paused_seconds"
SENT_BYTES = "sync/sent_bytes"
UPDATE_RATIO = "sync/update_ratio"
RATE = "sync/bytes_per_second"
_SYNC_PHASE = re.compile(r"sync/(?P<phase>\w+)_seconds")


class Stopwatch:
    """Measures named phases of one step, from its creation on. `clock` says the time in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._phases: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the body of a `with` statement, in addition to others of that name."""
        started = self._clock()
        try:
            yield
        finally:
            self._phases[name] = self._phases.get(name, 0.0) + self._clock() - started

    def seconds(self) -> dict[str, float]:
        """`step_time`, and `time/PHASE_seconds` of each phase."""
        phases = {PHASE.format(name): seconds for name, seconds in self._phases.items()}
        return {STEP_TIME: self._clock() - self._started, **phases}


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
    measured = [step for step in steps if STEP_TIME in step]
    measured = measured[_WARM_UP_STEPS:] or measured
    if not measured:
        return None
    phases = {
        phase: statistics.median(step.get(PHASE.format(phase), 0.0) for step in measured) for phase in PHASES
    }
    total = statistics.median(step[STEP_TIME] for step in measured)
    phases = {phase: seconds for phase, seconds in phases.items() if seconds > 0}
    phases["other"] = max(0.0, total - sum(phases.values()))
    engines = [step[ENGINES] for step in measured if ENGINES in step]
    return StepSeconds(total, phases, int(statistics.median_low(engines)) if engines else None)


def idle_seconds(seconds: StepSeconds) -> dict[str, float]:
    """Seconds of a step in which trainer and engines, which have GPUs of their own, wait for one another, in
    a run whose steps sample and train one after the other.

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


def phase_of(metric: str) -> str | None:
    """The phase of a sync whose seconds a metric has; None for any other metric."""
    match = _SYNC_PHASE.fullmatch(metric)
    return match["phase"] if match and metric != PAUSED else None


def describe_syncs(steps: Sequence[Mapping[str, float]]) -> str:
    """The medians of the metrics of these steps as a sentence; empty where no step has them. Metrics that
    no step has are left out."""
    seconds, of_step = _median(steps, PHASE.format("sync")), _median(steps, STEP_TIME)
    if seconds is None or not of_step:
        return ""
    parts = [f"weight sync: {seconds:.3g} s of {of_step:.3g} s a step at the median"]
    paused, sent, rate = (_median(steps, name) for name in (PAUSED, SENT_BYTES, RATE))
    if paused is not None:
        parts.append(f"engines paused for {paused:.3g} s")
    ratio = _median(steps, UPDATE_RATIO)
    if ratio is not None:
        parts.append(f"what changed is {ratio:.2%} of the bytes of all weights")
    if sent:
        at = "" if rate is None else f", {rate / 1e9:.3g} GB/s to each engine"
        size = f"{sent / 1e9:.3g} GB" if sent >= 1e9 else f"{sent / 1e6:.3g} MB"
        parts.append(f"{size} sent{at}")
    return "; ".join(parts)


def _median(steps: Sequence[Mapping[str, float]], name: str) -> float | None:
    values = [step[name] for step in steps if name in step]
    return statistics.median(values) if values else None
