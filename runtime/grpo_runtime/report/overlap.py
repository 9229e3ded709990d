"""Who waits for whom in asynchronous training, where trainer and engines work at the same time: the metrics
of a step, shares of the time for the page, and the split of GPUs that they suggest. Pure.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from grpo_runtime.report.metrics_file import MetricsRecord
from grpo_runtime.report.phases import MIN_GAIN, PAUSED, PHASE, STEP_TIME, Split

if TYPE_CHECKING:  # it imports torch
    from grpo_runtime.rollouts.interface import Recomputed

TRAINER_IDLE = "async/trainer_idle_seconds"
ENGINE_IDLE = "async/engine_idle_seconds"
ENGINE_IDLE_SHARE = "async/engine_idle_share"
TOKENS_PER_BUSY_SECOND = "async/tokens_per_busy_second"
RECOMPUTED_TOKENS = "async/recomputed_tokens"
PREEMPTIONS = "async/preemptions"
TRAINER = TRAINING, FOR_GROUPS, FOR_SYNC, OTHER = (
    "training",
    "waiting for groups",
    "waiting for a weight sync",
    "other",
)
"""What the trainer does in a step."""
ENGINES = SAMPLING, FOR_WORK, PAUSED_FOR_WEIGHTS = "sampling", "waiting for work", "paused for weights"
"""What engines do meanwhile."""
MIN_WAIT = 0.10
"""Nothing is said of a side that waits for the other no more than this share of the time."""
MOST_IDLE = 0.90
"""Where engines were idle for more of a step, as at the end of a run, its tokens are from before."""
MOST_BINS = 60
"""A picture of more steps shows means of several."""


@dataclass(frozen=True)
class IdleEngines:
    """How long engines were idle in a step, and what they have computed again."""

    seconds: Mapping[str, float]
    """By engine, as `Engines.take_idle_seconds` has them."""
    num_engines: int
    """Also those that were never idle."""
    recomputed: "Recomputed | None" = None


def wait_metrics(step: Mapping[str, float], *, idle: IdleEngines, num_tokens: int) -> dict[str, float]:
    """Metrics of a step, whose seconds are in `step` and whose groups have `num_tokens` sampled tokens. Where
    there is no engine nothing is said of engines."""
    seconds = step[STEP_TIME]
    metrics = {TRAINER_IDLE: sum(step.get(PHASE.format(phase), 0.0) for phase in ("generate", "sync"))}
    num_engines = max(idle.num_engines, len(idle.seconds))
    if idle.recomputed is not None:
        metrics[RECOMPUTED_TOKENS] = float(idle.recomputed.num_tokens)
        metrics[PREEMPTIONS] = float(idle.recomputed.num_preemptions)
    if num_engines == 0 or seconds <= 0:
        return metrics
    # a pause that began before the step is counted where it ended
    engine_idle = sum(min(one, seconds) for one in idle.seconds.values()) / num_engines
    metrics |= {ENGINE_IDLE: engine_idle, ENGINE_IDLE_SHARE: engine_idle / seconds}
    if engine_idle <= MOST_IDLE * seconds:
        metrics[TOKENS_PER_BUSY_SECOND] = num_tokens / (seconds - engine_idle)
    return metrics


@dataclass(frozen=True)
class Overlap:
    """Where the time of some steps went."""

    step_seconds: float
    """Mean of a step."""
    shares: Mapping[str, float]
    """Shares of the time by what it went to: those of TRAINER come to 1, and so do those of ENGINES, which
    are means over engines."""

    @property
    def trainer_waits(self) -> float:
        """The share of the time in which the trainer waits for groups."""
        return self.shares[FOR_GROUPS]

    @property
    def engines_wait(self) -> float:
        """The share of the time in which the mean engine has nothing to sample. Its pauses are none of it:
        another split has them too."""
        return self.shares[FOR_WORK]


def measured(records: Sequence[MetricsRecord]) -> list[MetricsRecord]:
    """The steps that say who waited, without the first of each attempt, for which engines are started. Those
    where there are no others."""
    found = [record for record in records if TRAINER_IDLE in record.values and ENGINE_IDLE in record.values]
    attempts = [None, *(record.attempt for record in records)]
    firsts = {
        record.step for record, before in zip(records, attempts, strict=False) if record.attempt != before
    }
    return [record for record in found if record.step not in firsts] or found


def overlap(steps: Sequence[Mapping[str, float]]) -> Overlap:
    """Where the time of these steps went, of which there is at least one: sums of seconds by their sum, so
    that a long step counts for what it takes."""

    def total(seconds: str) -> float:
        return sum(step.get(seconds, 0.0) for step in steps)

    whole = total(STEP_TIME)
    trainer = {
        TRAINING: total(PHASE.format("train")) + total(PHASE.format("digest")),
        FOR_GROUPS: total(PHASE.format("generate")),
        FOR_SYNC: total(PHASE.format("sync")),
    }
    idle = total(ENGINE_IDLE)
    paused = min(idle, total(PAUSED))
    engines = {SAMPLING: whole - idle, FOR_WORK: idle - paused, PAUSED_FOR_WEIGHTS: paused}
    seconds = {**trainer, OTHER: max(0.0, whole - sum(trainer.values())), **engines}
    return Overlap(whole / len(steps), {name: value / whole for name, value in seconds.items()})


def pictured(records: Sequence[MetricsRecord], *, most: int = MOST_BINS) -> list[MetricsRecord]:
    """The shares of these steps as records for a chart, at most `most`: where there are more steps, each
    record is of as many that follow one another, at the step in their middle."""
    size = max(1, math.ceil(len(records) / most))
    bins = [records[start : start + size] for start in range(0, len(records), size)]
    return [
        replace(some[len(some) // 2], values=overlap([record.values for record in some]).shares)
        for some in bins
    ]


def describe_waits(found: Overlap, *, num_ranks: int, num_engines: int) -> str:
    """Who waits for the other for more than MIN_WAIT of the time, and how many engines or training processes
    would be enough; empty where neither does.

    A side that waits for a share w of the time is busy for b = 1 - w of it. E engines that are busy for b_e
    do in every second what E b_e would do that are always busy. P training processes that are busy for b_t
    keep those engines busy if there are P b_t / b_e of them, and E b_e / b_t engines keep the trainer busy:
    the work of a step stays what it is, and more of a kind do it faster in proportion.
    """
    busy_trainer, busy_engines = 1 - found.trainer_waits, 1 - found.engines_wait
    if found.trainer_waits > MIN_WAIT and found.engines_wait > MIN_WAIT:
        return (
            f"The trainer waited for groups {_percent(found.trainer_waits)} of the time, and engines for "
            f"work {_percent(found.engines_wait)}: rewards or tools take that time, or async.maxStaleness "
            "lets too few prompts begin."
        )
    if found.engines_wait > MIN_WAIT:
        waited = f"Engines waited for the trainer {_percent(found.engines_wait)} of the time"
        enough = _whole(num_engines * busy_engines)
        if enough < num_engines:
            return f"{waited}: {_count(enough, 'engine')} would do what {num_engines} did."
        needed = max(num_ranks + 1, _whole(num_ranks * busy_trainer / busy_engines))
        return (
            f"{waited}: {_count(needed, 'training process')} instead of {num_ranks} would keep them busy, if "
            "training becomes faster in proportion."
        )
    if found.trainer_waits > MIN_WAIT:
        needed = max(num_engines + 1, _whole(num_engines * busy_engines / busy_trainer))
        return (
            f"The trainer waited for engines {_percent(found.trainer_waits)} of the time: "
            f"{_count(needed, 'engine')} instead of {num_engines} would keep it busy, if sampling becomes "
            "faster in proportion."
        )
    return ""


def better_overlapped_split(
    found: Overlap, *, num_ranks: int, num_engines: int, gpus_per_engine: int
) -> Split | None:
    """The split of the same GPUs with the shortest step; None when it saves too little.

    A step takes as long as its slower side: the trainer's work, of which training is as many times as fast as
    there are ranks, or the engines', which is as many times as fast as there are engines. What both lose by
    waiting for one another is taken to stay the same share.
    """
    trains, rest = found.shares[TRAINING], found.shares[FOR_SYNC] + found.shares[OTHER]
    engines_work = 1 - found.engines_wait

    def slower_side(ranks: int, engines: int) -> float:
        return max(rest + trains * num_ranks / ranks, engines_work * num_engines / engines)

    num_gpus = num_ranks + num_engines * gpus_per_engine
    now = slower_side(num_ranks, num_engines)
    splits = [
        Split(ranks, engines, found.step_seconds * slower_side(ranks, engines) / now)
        for engines in range(1, (num_gpus - 1) // gpus_per_engine + 1)
        for ranks in [num_gpus - engines * gpus_per_engine]
    ]
    best = min(splits, key=lambda split: split.step_seconds)
    return best if best.step_seconds <= (1 - MIN_GAIN) * found.step_seconds else None


def _whole(number: float) -> int:
    """Rounded up, unless the whole number below lacks no more than MIN_GAIN of it."""
    return max(1, math.ceil(number * (1 - MIN_GAIN)))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _count(number: int, of_what: str) -> str:
    plural = "es" if of_what.endswith("s") else "s"
    return f"{number} {of_what}{plural if number > 1 else ''}"
