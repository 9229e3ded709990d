"""What follows the end of an attempt: whether another one can help, what it counts for, and how long it
waits and computes with. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

from grpo_api.contract.progress import Progress
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.judge.causes import COUNTED, NOT_COUNTED, Cause, Consequence, Precedence
from grpo_api.v1alpha1.spec import FailureAction, FailureRule
from grpo_api.v1alpha1.status import ErrorSignature

Ended = TypeVar("Ended")
_CONSEQUENCES = {
    FailureAction.FAIL: Consequence(is_retried=False, is_counted=False),
    FailureAction.RESTART: COUNTED,
    FailureAction.IGNORE: NOT_COUNTED,
    FailureAction.SUSPEND: NOT_COUNTED,
}
_FIRST_PAUSE_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 60.0
_LONGEST_DISRUPTION_PAUSE_SECONDS = 600.0


def newest_step(*steps: int | None) -> int | None:
    """The highest of the steps that are not None; None when all are."""
    return max((step for step in steps if step is not None), default=None)


def repeated_error(
    error: ErrorSignature | None, *, before: ErrorSignature | None, message: str
) -> ReasonMessage | None:
    """Why no attempt follows one that `error` ended, when the attempt `before` it ended by the same one; None
    where another may help. `message` is that of the error.

    The process that makes an error has separated those that may pass (the network, a volume, a GPU) from
    these.
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
    """Failures that count against failurePolicy.maxRestarts."""
    num_disruptions: int = 0
    """Ends of attempts that do not count."""
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

    def with_progress(self, progress: Progress | None) -> Self:
        """The counts once an attempt has ended whose last report was `progress`. The checkpoint that it began
        with is no progress of its own: an earlier run may have saved it."""
        if progress is None:
            return self
        known = newest_step(self.checkpoint_step, progress.resumed_from_step)
        return replace(self, checkpoint_step=known).with_checkpoint(progress.checkpoint_step)


def acting_rule(
    rules: Sequence[FailureRule] | None, cause: Cause[Any], *, role: str, attempt: int
) -> FailureRule | None:
    """The first of `failurePolicy.rules` that is about this cause, which ended a pod of `role` in `attempt`;
    None where the exit code decides. That of a pod that was taken away says nothing: it was made to end."""
    reason = cause.why.reason
    exit_code = None if cause.precedence is Precedence.DISRUPTION else cause.exit_code
    matches = (
        rule
        for rule in rules or ()
        if rule.is_about(role=role, exit_code=exit_code, reason=reason, attempt=attempt)
    )
    return next(matches, None)


def with_rule(cause: Cause[Ended], rule: FailureRule) -> Cause[Ended]:
    """The cause with what this rule has follow from it, and with the rule in its message. That the same error
    ended the attempt before says nothing then."""
    follows = _CONSEQUENCES[rule.action]
    lowers_budget = cause.consequence.lowers_budget and follows.is_retried
    message = f"{cause.why.message} (rule {rule.name} of failurePolicy: {rule.action.value})"
    return replace(
        cause,
        why=replace(cause.why, message=message),
        consequence=replace(follows, lowers_budget=lowers_budget),
        error=None,
    )


def why_final(
    cause: Cause[Any],
    *,
    attempt: int,
    past: WithoutProgress,
    max_restarts: int,
    error_before: ErrorSignature | None,
) -> ReasonMessage | None:
    """Why no other attempt follows this cause, which ended `attempt`; None where one does. `error_before` is
    what ended the attempt before it."""
    if not cause.consequence.is_retried:
        return cause.why
    again = repeated_error(cause.error, before=error_before, message=cause.why.message)
    if again is not None or not cause.consequence.is_counted or past.num_failures < max_restarts:
        return again
    used_up = f"attempt {attempt} failed and failurePolicy.maxRestarts ({max_restarts}) is used up"
    if past.checkpoint_step is not None:
        used_up += f" since the checkpoint of step {past.checkpoint_step}"
    return ReasonMessage(cause.why.reason, f"{used_up}: {cause.why.message}")


def lowered_budget(tokens: int) -> int:
    """Most tokens of a micro-batch in the attempt after one that ran out of GPU memory with so many."""
    return max(2, tokens // 2)
