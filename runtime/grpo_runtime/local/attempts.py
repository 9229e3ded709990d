"""What follows from the end of an attempt of a local job, by the operator's rules and table. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from grpo_api.contract.exit_codes import ExitCode, exit_policy, is_uncounted
from grpo_api.contract.progress import Progress
from grpo_api.contract.reasons import Reason
from grpo_api.contract.retries import WithoutProgress, newest_step, pause_seconds, repeated_error
from grpo_api.v1alpha1.status import ErrorSignature
from grpo_runtime.local.process_outcome import ProcessOutcome

_SHORT_RUN_SECONDS = 60.0
"""An engine that ended before this long has most likely done no work."""


class Next(Enum):
    """What follows an attempt."""

    DONE = "done"
    STOPPED = "stopped"
    RETRY = "retry"
    FAILED = "failed"


@dataclass(frozen=True)
class AttemptOutcome:
    """What follows an attempt, and which process was the cause; None when every step is done."""

    next: Next
    cause: ProcessOutcome | None = None
    is_counted: bool = True
    """Whether the attempt that follows uses up one of failurePolicy.maxRestarts."""
    needs_lower_budget: bool = False
    """Whether the attempt that follows computes fewer tokens at a time, because a GPU was out of memory."""
    has_used_up_restarts: bool = False
    """Whether it would be retried if failurePolicy.maxRestarts were higher."""


def outcome_of_attempt(
    outcomes: Sequence[ProcessOutcome],
    *,
    num_failures: int,
    max_restarts: int,
    is_stop_requested: bool,
    has_worked: bool = False,
    error_before: ErrorSignature | None = None,
) -> AttemptOutcome:
    """The outcome of an attempt whose processes ended in the order of `outcomes`.

    `num_failures` are those without progress since, all counted; `has_worked` as in `exit_policy`, and
    `error_before` is what ended the attempt before it. A cause ranks above its consequences: first what no
    retry can help, then a process that failed by itself, then one that only lost others or was asked to stop.
    """
    cause = min(
        (outcome for outcome in outcomes if outcome.termination.exit_code != ExitCode.DONE),
        key=_rank,
        default=None,
    )
    if cause is None:
        return AttemptOutcome(Next.DONE)
    exit_code = cause.termination.exit_code
    if not exit_policy(exit_code, has_worked=has_worked).is_retried:
        return AttemptOutcome(Next.FAILED, cause)
    if is_stop_requested:
        return AttemptOutcome(Next.STOPPED if exit_code == ExitCode.TERMINATED else Next.FAILED, cause)
    return _after_failure(
        cause, num_failures=num_failures, max_restarts=max_restarts, error_before=error_before
    )


def _after_failure(
    cause: ProcessOutcome, *, num_failures: int, max_restarts: int, error_before: ErrorSignature | None
) -> AttemptOutcome:
    """What follows an attempt whose exit code allows another one."""
    ended = cause.termination
    if is_uncounted(ended.exit_code, reason=ended.reason):
        return AttemptOutcome(Next.RETRY, cause, is_counted=False)
    again = repeated_error(ended.error, before=error_before, message=ended.message)
    if again is not None:
        final = ended.model_copy(update={"reason": again.reason, "message": again.message})
        return AttemptOutcome(Next.FAILED, replace(cause, termination=final))
    # no node evicts a local process: a stop that was not requested counts as a failure like others
    if num_failures >= max_restarts:
        return AttemptOutcome(Next.FAILED, cause, has_used_up_restarts=True)
    needs_lower_budget = ended.reason == Reason.GPU_OUT_OF_MEMORY
    return AttemptOutcome(Next.RETRY, cause, needs_lower_budget=needs_lower_budget)


def with_progress_of(past: WithoutProgress, progress: Progress | None) -> WithoutProgress:
    """The failures without progress once an attempt has ended whose last report was `progress`."""
    if progress is None:
        return past
    # the checkpoint that it resumed from is no progress of its own: an earlier command may have saved it
    known = newest_step(past.checkpoint_step, progress.resumed_from_step)
    return replace(past, checkpoint_step=known).with_checkpoint(progress.checkpoint_step)


def engine_delay(*, ran_seconds: float, num_short_runs: int) -> float:
    """Seconds before an engine is started again: 0 unless it ended soon after it had started.

    `num_short_runs` is how many times in a row that happened before.
    """
    return pause_seconds(num_short_runs + 1) if is_short(ran_seconds) else 0.0


def is_short(ran_seconds: float) -> bool:
    """Whether an engine ended soon after it had started."""
    return ran_seconds < _SHORT_RUN_SECONDS


def _rank(outcome: ProcessOutcome) -> int:
    """Lower is more likely the cause."""
    termination = outcome.termination
    if not exit_policy(termination.exit_code).is_retried:
        return 0
    is_consequence = termination.exit_code == ExitCode.TERMINATED or termination.reason == Reason.PEER_LOST
    return 2 if is_consequence else 1
