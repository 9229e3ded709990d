"""What follows from the end of an attempt of a local job, by the rules of `grpo_api.judge`. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.judge.attempts import WithoutProgress, why_final
from grpo_api.judge.causes import Cause, cause_of, first_cause
from grpo_api.v1alpha1.status import ErrorSignature
from grpo_runtime.local.process_outcome import ProcessOutcome


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
    cause: Cause[ProcessOutcome] | None = None
    final: ReasonMessage | None = None
    """Why no other attempt follows, of one that failed."""


def outcome_of_attempt(
    outcomes: Sequence[ProcessOutcome],
    *,
    attempt: int,
    past: WithoutProgress,
    max_restarts: int,
    is_stop_requested: bool,
    has_worked: bool = False,
    error_before: ErrorSignature | None = None,
) -> AttemptOutcome:
    """The outcome of an attempt whose processes ended in the order of `outcomes`.

    `past` are the attempts without progress before it, `has_worked` is as in `exit_policy`, and
    `error_before` is what ended the attempt before it. No node evicts a local process: a stop that was not
    requested counts as a failure like others.
    """
    cause = first_cause(
        cause_of(outcome.termination, outcome, has_worked=has_worked)
        for outcome in outcomes
        if outcome.termination.exit_code != ExitCode.DONE
    )
    if cause is None:
        return AttemptOutcome(Next.DONE)
    if is_stop_requested and cause.consequence.is_retried:
        was_stopped = cause.exit_code == ExitCode.TERMINATED
        return AttemptOutcome(Next.STOPPED if was_stopped else Next.FAILED, cause, cause.why)
    final = why_final(cause, attempt=attempt, past=past, max_restarts=max_restarts, error_before=error_before)
    return AttemptOutcome(Next.RETRY if final is None else Next.FAILED, cause, final)
