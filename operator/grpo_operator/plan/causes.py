"""Causes from what the pods of an attempt show: of each that failed, is gone or runs another build. Pure.

Which of them is the first, and what follows, is in `grpo_api.judge`.
"""

from collections.abc import Iterable

from grpo_api.contract.environment import Role
from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.judge.causes import Cause, Precedence, cause_of, certain, disruption
from grpo_api.v1alpha1.status import GRPOJobStatus
from grpo_operator.observe.image_build import other_build
from grpo_operator.observe.observed import ContainerTermination, PodView
from grpo_operator.plan.last_failure import Place
from grpo_operator.plan.termination import end_of


def trainer_causes(pods: Iterable[PodView], *, has_worked: bool) -> list[Cause[Place]]:
    """Why trainer pods of one attempt have failed; one cause for each that has. `has_worked` as in
    `exit_policy`."""
    return [_cause_of(pod, has_worked=has_worked) for pod in pods if pod.has_failed]


def vanished_causes(names: Iterable[str]) -> list[Cause[Place]]:
    """Trainer pods that existed, and of which nothing is left."""
    return [
        disruption(
            ReasonMessage(
                Reason.POD_DELETED, f"trainer pod {name} is gone: it was deleted or its node was removed"
            ),
            Place(Role.TRAINER, name),
        )
        for name in names
    ]


def other_build_causes(pods: Iterable[PodView], status: GRPOJobStatus) -> list[Cause[Place]]:
    """Trainer pods that run another build of the image than the run."""
    found = ((pod, other_build(pod, status)) for pod in pods)
    return [
        disruption(ReasonMessage(Reason.IMAGE_CHANGED, f"trainer {why}"), _place(pod, Role.TRAINER))
        for pod, why in found
        if why is not None
    ]


def _cause_of(pod: PodView, *, has_worked: bool) -> Cause[Place]:
    own = None
    if pod.termination:
        own = cause_from_termination(pod, pod.termination, role=Role.TRAINER, has_worked=has_worked)
    # A container that names its own cause counts even when its pod is being deleted by now.
    if own and own.precedence is Precedence.CERTAIN:
        return own
    if pod.disruption:
        why = ReasonMessage(pod.disruption.reason, f"trainer pod {pod.name}: {pod.disruption.message}")
        # one that used more storage than its own limit; its exit code says nothing, as its node stopped it
        kind = certain if pod.has_exceeded_own_limit else disruption
        return kind(
            why,
            _place(pod, Role.TRAINER, pod.termination),
            exit_code=pod.termination.exit_code if pod.termination else None,
            ended_at=pod.termination.finished_at if pod.termination else None,
        )
    return own or _failed_without_termination(pod)


def cause_from_termination(
    pod: PodView, termination: ContainerTermination, *, role: Role, has_worked: bool
) -> Cause[Place]:
    """Why the container of a pod ended, as a cause. `has_worked` as in `exit_policy`."""
    end = end_of(termination)
    if end.exit_code == ExitCode.TERMINATED:
        message = (
            f"trainer pod {pod.name} was asked to stop although it was neither deleted nor evicted, most "
            f"likely by its liveness probe: {end.message}"
        )
        end = end.model_copy(update={"message": message})
    place = _place(pod, role, termination)
    return cause_of(end, place, has_worked=has_worked, ended_at=termination.finished_at)


def _failed_without_termination(pod: PodView) -> Cause[Place]:
    """The node gave the pod up before or while it started its container."""
    problem = pod.start_problem or ReasonMessage(Reason.POD_FAILED, "its node reported no reason")
    why = ReasonMessage(problem.reason, f"trainer pod {pod.name} failed without running: {problem.message}")
    return disruption(why, _place(pod, Role.TRAINER))


def _place(pod: PodView, role: Role, termination: ContainerTermination | None = None) -> Place:
    return Place(role, pod.name, pod.node, termination.container if termination else "")
