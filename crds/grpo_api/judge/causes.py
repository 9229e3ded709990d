"""Why an attempt is over: every failure as a cause, the order that puts causes before their effects, and what
follows from each. Pure.

When one process of a gang dies, the others follow a moment later: they lose it, or they are stopped. What
people read must name the first, not the loudest.

A new cause begins in `contract.reasons` (its reason, and whether it is an effect); what raises it is an error
of `grpo_runtime.errors`, and its exit code says here what follows.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import IntEnum
from typing import Generic, TypeVar

from grpo_api.contract.exit_codes import ExitCode, ExitPolicy, exit_policy, is_uncounted
from grpo_api.contract.progress import TerminationMessage
from grpo_api.contract.reasons import Reason, ReasonMessage, is_effect
from grpo_api.v1alpha1.status import ErrorSignature

OOM_KILLED = "OOMKilled"
"""The reason of a container that the kernel killed because it was out of memory."""
_LATEST = datetime.max.replace(tzinfo=UTC)

Ended = TypeVar("Ended")


class Precedence(IntEnum):
    """How likely it is that this started the failure; the lower, the likelier."""

    CERTAIN = 0
    """It names its own cause: the user's error, no more data, a corrupt checkpoint, out of memory, too much
    storage."""
    DISRUPTION = 1
    """The cluster or a person took the pod away."""
    ERROR = 2
    """It ended by itself."""
    EFFECT = 3
    """It lost its peers, or was asked to stop."""


@dataclass(frozen=True)
class Consequence:
    """What follows from a failure: another attempt or not, and how."""

    is_retried: bool
    is_counted: bool
    """Whether that attempt uses up one of failurePolicy.maxRestarts."""
    lowers_budget: bool = False
    """Whether it computes fewer tokens at a time, because a GPU was out of memory."""


COUNTED = Consequence(is_retried=True, is_counted=True)
NOT_COUNTED = Consequence(is_retried=True, is_counted=False)


@dataclass(frozen=True)
class Cause(Generic[Ended]):
    """One failure: why, what ended, and what follows from it."""

    precedence: Precedence
    why: ReasonMessage
    ended: Ended
    """The pod, process or rank, as the caller names it."""
    consequence: Consequence
    exit_code: int | None = None
    ended_at: datetime | None = None
    error: ErrorSignature | None = None
    """The Python error that ended it, where the same one again means that no attempt helps."""

    def without_room(self) -> "Cause[Ended]":
        """The cause in an attempt that never had all the nodes it needs: that its trainer timed out waiting
        for engines, or a rank for the others, is not counted."""
        has_timed_out = self.exit_code == ExitCode.ROLLOUT_LOST or is_effect(self.why.reason)
        is_counted = self.consequence.is_counted and not has_timed_out
        return replace(self, consequence=replace(self.consequence, is_counted=is_counted))


def first_cause(causes: Iterable[Cause[Ended]]) -> Cause[Ended] | None:
    """The cause to show and to act on: by precedence, then by time, then the first of those given. Callers
    give those first that others may follow from."""
    return min(causes, key=lambda cause: (cause.precedence, cause.ended_at or _LATEST), default=None)


def cause_of(
    end: TerminationMessage,
    ended: Ended,
    *,
    has_worked: bool,
    is_effect: bool | None = None,
    ended_at: datetime | None = None,
) -> Cause[Ended]:
    """A process that ended in this way as a cause. `has_worked` as in `exit_policy`; `is_effect` is given by
    who knows whether another process is to blame, and else what the process says itself counts."""
    return Cause(
        _precedence_of(end, is_effect=is_effect),
        ReasonMessage(end.reason, end.message),
        ended,
        consequence_of(end, has_worked=has_worked),
        end.exit_code,
        ended_at,
        end.error if end.exit_code == ExitCode.UNEXPECTED and not _is_out_of_memory(end) else None,
    )


def disruption(
    why: ReasonMessage, ended: Ended, *, exit_code: int | None = None, ended_at: datetime | None = None
) -> Cause[Ended]:
    """The cluster or a person took it away: another attempt follows, which does not count."""
    return Cause(Precedence.DISRUPTION, why, ended, NOT_COUNTED, exit_code, ended_at)


def certain(
    why: ReasonMessage, ended: Ended, *, exit_code: int | None = None, ended_at: datetime | None = None
) -> Cause[Ended]:
    """It hung, or used more than its own limit, whatever its exit code: another attempt follows, which
    counts."""
    return Cause(Precedence.CERTAIN, why, ended, COUNTED, exit_code, ended_at)


def consequence_of(end: TerminationMessage, *, has_worked: bool) -> Consequence:
    """What follows when a process of a trainer, or an engine, ended in this way.

    The exit-code table decides, with two exceptions. A process that was asked to stop (143) although its pod
    was not taken away is counted: most likely its own liveness probe stopped it, and uncounted that could
    repeat without limit. One that waits for something outside the cluster, or for a person, is not counted;
    the reason shows that, which our own process writes as it chooses its exit code.
    """
    policy = _policy_of(end, has_worked=has_worked)
    was_asked_to_stop = end.exit_code == ExitCode.TERMINATED
    is_uncounted_reason = is_uncounted(end.exit_code, reason=end.reason) and not _is_out_of_memory(end)
    return Consequence(
        is_retried=policy.is_retried,
        is_counted=(policy.is_counted or was_asked_to_stop) and not is_uncounted_reason,
        lowers_budget=policy.is_retried and end.reason == Reason.GPU_OUT_OF_MEMORY,
    )


def _precedence_of(end: TerminationMessage, *, is_effect: bool | None) -> Precedence:
    if is_effect:
        return Precedence.EFFECT
    if _is_out_of_memory(end) or not _policy_of(end, has_worked=False).is_retried:
        return Precedence.CERTAIN
    lost_a_peer = end.is_effect if is_effect is None else False
    was_asked_to_stop = end.exit_code == ExitCode.TERMINATED
    return Precedence.EFFECT if lost_a_peer or was_asked_to_stop else Precedence.ERROR


def _policy_of(end: TerminationMessage, *, has_worked: bool) -> ExitPolicy:
    """The row of the exit-code table; out of memory counts as killed, whatever the exit code."""
    code = ExitCode.KILLED if _is_out_of_memory(end) else end.exit_code
    return exit_policy(code, has_worked=has_worked)


def _is_out_of_memory(end: TerminationMessage) -> bool:
    return end.reason == OOM_KILLED
