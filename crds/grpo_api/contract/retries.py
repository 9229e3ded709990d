"""Rules about attempts that the operator and local mode share: when one has begun, when it has made progress,
and how long the next one waits. They are pure."""

from dataclasses import dataclass, replace
from typing import Self

from grpo_api.contract.progress import Progress, TrainerState

WORKING_STATES = frozenset({TrainerState.TRAINING, TrainerState.STOPPING, TrainerState.DONE})
"""States of a trainer that makes steps, or has made them."""

LONG_RUN_SECONDS = 300.0
"""An attempt that ran this long has made progress, whether or not it saved a checkpoint."""

_FIRST_PAUSE_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 60.0


def has_begun(progress: Progress) -> bool:
    """Whether this attempt has begun its first step. Before that it loads models and waits for engines, which
    startupDeadlineSeconds limits and stallTimeoutSeconds does not."""
    return progress.state in WORKING_STATES or progress.step > (progress.resumed_from_step or 0)


def newest_step(*steps: int | None) -> int | None:
    """The highest of the steps that are not None; None when all are."""
    return max((step for step in steps if step is not None), default=None)


def pause_seconds(num_failures: int) -> float:
    """How long the next attempt waits after consecutive failures: 0 after the first one, then 5 seconds, and
    twice as long each time up to a minute."""
    if num_failures < 2:
        return 0.0
    return min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** min(num_failures - 2, 10))


@dataclass(frozen=True)
class ConsecutiveFailures:
    """How many attempts in a row failed without making progress."""

    num_failures: int = 0
    checkpoint_step: int | None = None
    """Step of the newest checkpoint when the running attempt began; None without one."""

    def with_attempt(self, *, ran_seconds: float, checkpoint_step: int | None) -> Self:
        """The count after what the running attempt has done so far: 0 once it has made progress, which means
        that it ran for LONG_RUN_SECONDS or committed a newer checkpoint. Steps without a checkpoint do not
        count, because they are lost with the attempt."""
        before = self.checkpoint_step
        has_saved = checkpoint_step is not None and (before is None or checkpoint_step > before)
        has_made_progress = has_saved or ran_seconds >= LONG_RUN_SECONDS
        return replace(self, num_failures=0) if has_made_progress else self

    def with_failure(self, *, checkpoint_step: int | None, num_attempts: int = 1) -> Self:
        """One failure more, or `num_attempts` more. `checkpoint_step` is the step of the newest checkpoint
        that the failed attempts committed."""
        return type(self)(
            num_failures=self.num_failures + num_attempts,
            checkpoint_step=newest_step(self.checkpoint_step, checkpoint_step),
        )
