"""Rules of attempts that the operator and local mode share: when one is at work, when it got on, and how
long the next one waits. Pure."""

from grpo_api.contract.progress import Progress, TrainerState

WORKING_STATES = frozenset({TrainerState.TRAINING, TrainerState.STOPPING, TrainerState.DONE})
"""States of a trainer that makes steps, or has made them."""

LONG_RUN_SECONDS = 300.0
"""An attempt that ran this long got on, whether or not it saved a checkpoint."""

_FIRST_PAUSE_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 60.0


def has_begun(progress: Progress) -> bool:
    """Whether this attempt got to work: it makes its first step, or made one. Before that it loads models
    and waits, and the startup deadline is its measure, not the stall timeout."""
    return progress.state in WORKING_STATES or progress.step > (progress.resumed_from_step or 0)


def newest_step(*steps: int | None) -> int | None:
    """The highest of the checkpoints' steps that are known; None when none is."""
    return max((step for step in steps if step is not None), default=None)


def got_on(*, ran_seconds: float, saved_step: int | None, saved_before: int | None) -> bool:
    """Whether an attempt ends the row of failures before it: it ran for long, or committed a newer checkpoint
    than there was before it. Steps that were not saved are lost with it. None stands for no checkpoint."""
    has_saved = saved_step is not None and (saved_before is None or saved_step > saved_before)
    return has_saved or ran_seconds >= LONG_RUN_SECONDS


def pause_seconds(failures_in_a_row: int) -> float:
    """How long the next start waits: not after one failure, then twice as long each time, to a limit."""
    if failures_in_a_row < 2:
        return 0.0
    return min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** min(failures_in_a_row - 2, 10))
