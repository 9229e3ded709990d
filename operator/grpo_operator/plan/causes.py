"""Why an attempt is over: every failure as a cause, and the order that puts causes before their effects.

When one process of a gang dies, the others follow a moment later: with broken pipes and exit code 1, or
because they are stopped. The message in status must name the first, not the loudest. Pure.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum

from grpo_api.contract.environment import Role
from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.v1alpha1.status import ErrorSignature, GRPOJobStatus
from grpo_operator.observe.image_build import other_build
from grpo_operator.observe.observed import ContainerTermination, PodView
from grpo_operator.plan.consequence import Consequence, consequence_of
from grpo_operator.plan.last_failure import Place
from grpo_operator.plan.termination import error_of, explain_termination, is_out_of_memory, policy_of

_EFFECT = re.compile(
    r"broken pipe|connection (reset|closed|refused)|closed by (the )?(remote )?peer|socket (timeout|closed)",
    re.I,
)
_LATEST = datetime.max.replace(tzinfo=UTC)


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
class Cause:
    """One failure: why, where, and what follows from it."""

    precedence: Precedence
    why: ReasonMessage
    place: Place
    consequence: Consequence
    exit_code: int | None = None
    finished_at: datetime | None = None
    error: ErrorSignature | None = None


def first_cause(causes: Iterable[Cause]) -> Cause | None:
    """The cause to show and to act on: by precedence, then by time, then by name."""
    return min(causes, key=lambda c: (c.precedence, c.finished_at or _LATEST, c.place.pod), default=None)


def trainer_causes(pods: Iterable[PodView], *, has_worked: bool) -> list[Cause]:
    """Why trainer pods of one attempt have failed; one cause for each that has. `has_worked` as in
    `exit_policy`."""
    return [_cause_of(pod, has_worked=has_worked) for pod in pods if pod.has_failed]


def vanished_causes(names: Iterable[str]) -> list[Cause]:
    """Trainer pods that existed, and of which nothing is left."""
    return [
        _disruption(
            ReasonMessage(
                Reason.POD_DELETED, f"trainer pod {name} is gone: it was deleted or its node was removed"
            ),
            Place(Role.TRAINER, name),
        )
        for name in names
    ]


def other_build_causes(pods: Iterable[PodView], status: GRPOJobStatus) -> list[Cause]:
    """Trainer pods that run another build of the image than the run."""
    found = ((pod, other_build(pod, status)) for pod in pods)
    return [
        _disruption(ReasonMessage(Reason.IMAGE_CHANGED, f"trainer {why}"), _place(pod, Role.TRAINER))
        for pod, why in found
        if why is not None
    ]


def _cause_of(pod: PodView, *, has_worked: bool) -> Cause:
    own = None
    if pod.termination:
        own = cause_from_termination(pod, pod.termination, role=Role.TRAINER, has_worked=has_worked)
    # A container that names its own cause counts even when its pod is being deleted by now.
    if own and own.precedence is Precedence.CERTAIN:
        return own
    if pod.disruption:
        why = ReasonMessage(pod.disruption.reason, f"trainer pod {pod.name}: {pod.disruption.message}")
        if pod.has_exceeded_own_limit:
            return _own_eviction(pod, why)
        return _disruption(why, _place(pod, Role.TRAINER, pod.termination), pod.termination)
    return own or _failed_without_termination(pod)


def cause_from_termination(
    pod: PodView, termination: ContainerTermination, *, role: Role, has_worked: bool
) -> Cause:
    """Why the container of a pod ended, as a cause. `has_worked` as in `exit_policy`."""
    why = explain_termination(termination)
    was_asked_to_stop = termination.exit_code == ExitCode.TERMINATED
    if is_out_of_memory(termination) or not policy_of(termination, has_worked=False).is_retried:
        precedence = Precedence.CERTAIN
    elif why.reason in (Reason.HUB_UNREACHABLE, Reason.REWARD_SERVICE_UNREACHABLE):
        precedence = Precedence.ERROR  # its message may name a refused connection, but not one to a peer
    elif was_asked_to_stop or why.reason == Reason.PEER_LOST or _EFFECT.search(why.message):
        precedence = Precedence.EFFECT
    else:
        precedence = Precedence.ERROR
    if was_asked_to_stop:
        message = (
            f"trainer pod {pod.name} was asked to stop although it was neither deleted nor evicted, most "
            f"likely by its liveness probe: {why.message}"
        )
        why = ReasonMessage(why.reason, message)
    return Cause(
        precedence,
        why,
        _place(pod, role, termination),
        consequence_of(termination, is_disruption=False, has_worked=has_worked),
        termination.exit_code,
        termination.finished_at,
        error_of(termination),
    )


def _own_eviction(pod: PodView, why: ReasonMessage) -> Cause:
    """The pod used more storage than its own limit. Its exit code says nothing: its node stopped it."""
    return Cause(
        Precedence.CERTAIN,
        why,
        _place(pod, Role.TRAINER, pod.termination),
        consequence_of(None, is_disruption=False),
        pod.termination.exit_code if pod.termination else None,
        pod.termination.finished_at if pod.termination else None,
    )


def _failed_without_termination(pod: PodView) -> Cause:
    """The node gave the pod up before or while it started its container."""
    problem = pod.start_problem or ReasonMessage(Reason.POD_FAILED, "its node reported no reason")
    why = ReasonMessage(problem.reason, f"trainer pod {pod.name} failed without running: {problem.message}")
    return _disruption(why, _place(pod, Role.TRAINER))


def _disruption(why: ReasonMessage, place: Place, termination: ContainerTermination | None = None) -> Cause:
    return Cause(
        Precedence.DISRUPTION,
        why,
        place,
        consequence_of(termination, is_disruption=True),
        termination.exit_code if termination else None,
        termination.finished_at if termination else None,
    )


def _place(pod: PodView, role: Role, termination: ContainerTermination | None = None) -> Place:
    return Place(role, pod.name, pod.node, termination.container if termination else "")
