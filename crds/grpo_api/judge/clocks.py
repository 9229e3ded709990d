"""What the reports of an attempt show: whether it has begun, for how long it has shown no progress, and which
of its two clocks runs. Pure.

Until an attempt begins its first step, startupDeadlineSeconds limits it; from then on stallTimeoutSeconds.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

from grpo_api.contract.progress import Progress, TrainerState
from grpo_api.contract.reasons import Reason, ReasonMessage

WORKING_STATES = frozenset({TrainerState.TRAINING, TrainerState.STOPPING, TrainerState.DONE})
"""States of a trainer that makes steps, or has made them."""


def has_begun(progress: Progress) -> bool:
    """Whether this attempt has begun its first step. Before that it loads models and waits for engines, which
    startupDeadlineSeconds limits and stallTimeoutSeconds does not."""
    return progress.state in WORKING_STATES or has_made_a_step(progress)


def has_made_a_step(progress: Progress) -> bool:
    """Whether this attempt has finished a step of its own, beyond that of its checkpoint."""
    return progress.step > (progress.resumed_from_step or 0)


def signs_of_life(progress: Progress) -> tuple[object, ...]:
    """What changes while a trainer makes progress: as long as all of it stays the same, it makes none."""
    return progress.heartbeat, progress.step, progress.state


def is_reading(progress: Progress) -> bool:
    """Whether a trainer that has not begun reads its checkpoint: only that raises its heartbeat while it
    starts. startupDeadlineSeconds runs from the last time that it rose, as reading takes as long as the
    checkpoint is large."""
    return progress.state is TrainerState.STARTING and progress.heartbeat > 0


@dataclass(frozen=True)
class Clocks:
    """The clocks of one attempt; times are seconds on any one clock."""

    starting_since: float
    """Start of startupDeadlineSeconds."""
    alive_at: float
    """When the reports last showed a sign of life."""
    progress: Progress | None = None
    """The newest report."""

    @classmethod
    def begin(cls, now: float) -> Self:
        """The clocks of an attempt that begins now."""
        return cls(starting_since=now, alive_at=now)

    @property
    def has_begun(self) -> bool:
        """Whether the attempt has begun its first step."""
        return self.progress is not None and has_begun(self.progress)

    def updated(self, progress: Progress | None, *, now: float) -> Self:
        """The clocks once this is the newest report; None where there is none yet."""
        if progress is None:
            return self
        known = self.progress
        if known is not None and signs_of_life(known) == signs_of_life(progress):
            return replace(self, progress=progress)
        is_read_on = known is not None and known.heartbeat != progress.heartbeat and is_reading(progress)
        starting_since = now if is_read_on else self.starting_since
        return replace(self, starting_since=starting_since, alive_at=now, progress=progress)


def stalled(
    progress: Progress, *, seconds: float, limit_seconds: int, last_sign_at: datetime | None = None
) -> ReasonMessage:
    """Why a trainer that has begun counts as failed: it has made no progress for so long."""
    doing = f"{progress.state.value}: {progress.message}" if progress.message else progress.state.value
    since = f" since {last_sign_at:%Y-%m-%dT%H:%M:%SZ}" if last_sign_at else ""
    message = (
        f"the trainer has made no progress for {seconds:.0f} s (stallTimeoutSeconds is {limit_seconds}) "
        f"after step {progress.step} of {progress.total_steps or '?'}; it reports{since}: {doing}"
    )
    return ReasonMessage(Reason.TRAINER_STALLED, message)
