"""Rules about attempts that the operator and local mode share: when one has begun, what is progress, whether
another can help, and how long it waits. They are pure."""

from dataclasses import dataclass, replace
from typing import Self

from grpo_api.contract.progress import Progress, TrainerState
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.v1alpha1.status import ErrorSignature

WORKING_STATES = frozenset({TrainerState.TRAINING, TrainerState.STOPPING, TrainerState.DONE})
"""States of a trainer that makes steps, or has made them."""

_FIRST_PAUSE_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 60.0
_LONGEST_DISRUPTION_PAUSE_SECONDS = 600.0


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


def newest_step(*steps: int | None) -> int | None:
    """The highest of the steps that are not None; None when all are."""
    return max((step for step in steps if step is not None), default=None)


def repeated_error(
    error: ErrorSignature | None, *, before: ErrorSignature | None, message: str
) -> ReasonMessage | None:
    """Why no attempt follows one that `error` ended, when the attempt `before` it ended by the same one; None
    where another may help. `message` is that of the error.

    The process that makes an error has told those that may pass (the network, a volume, a GPU) from these.
    """
    if error is None or error != before:
        return None
    when = "before the first step" if error.step is None else f"at step {error.step}"
    sentence = f"the same error twice {when}: {message}; another attempt would end the same way"
    return ReasonMessage(Reason.REPEATED_ERROR, sentence)


def pause_seconds(num_failures: int, *, num_disruptions: int = 0) -> float:
    """How long the next attempt waits after failures and disruptions without progress between them: 0 after
    the first of a kind, then 5 seconds, and twice as long each time, up to a minute after failures and up to
    ten minutes after disruptions. The longer pause counts."""
    return max(
        _doubled(num_failures, longest=_LONGEST_PAUSE_SECONDS),
        _doubled(num_disruptions, longest=_LONGEST_DISRUPTION_PAUSE_SECONDS),
    )


def _doubled(times: int, *, longest: float) -> float:
    return 0.0 if times < 2 else min(longest, _FIRST_PAUSE_SECONDS * 2.0 ** min(times - 2, 10))


@dataclass(frozen=True)
class WithoutProgress:
    """The attempts that ended since the job last made progress.

    Progress is a committed checkpoint beyond any before. Nothing else is: steps without a checkpoint are lost
    with their attempt, however long it ran.
    """

    num_failures: int = 0
    """Those that count against failurePolicy.maxRestarts."""
    num_disruptions: int = 0
    """Those that do not."""
    checkpoint_step: int | None = None
    """Step of the highest checkpoint so far; None without one."""

    def with_checkpoint(self, step: int | None) -> Self:
        """The counts once the checkpoint of this step is committed: 0 if it is beyond any before."""
        if step is None or (self.checkpoint_step is not None and step <= self.checkpoint_step):
            return self
        return type(self)(checkpoint_step=step)

    def with_end(self, *, is_counted: bool) -> Self:
        """One attempt more that has ended."""
        return replace(
            self,
            num_failures=self.num_failures + is_counted,
            num_disruptions=self.num_disruptions + (not is_counted),
        )
