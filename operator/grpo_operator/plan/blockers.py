"""What keeps a job from its work without ending it: a pod that does not start, an engine that keeps ending.

Such a pod may start later, and a rollout pod that ended is restarted. But a person who looks at the job must
find the message: in a condition, and in status.lastFailure. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from grpo_api.contract.environment import Role
from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_operator.observe.observed import ContainerTermination, EngineView, PodView
from grpo_operator.observe.pod_reasons import not_seen
from grpo_operator.plan.last_failure import PodRef
from grpo_operator.plan.termination import explain_termination

UNSEEN_SECONDS = 30.0
"""Age from which a pod that no scheduler has looked at blocks the job."""
_LATE_REPORT = timedelta(seconds=30.0)
"""How much later than the end of its container a node may report that a pod is not ready."""


@dataclass(frozen=True)
class Blocker:
    """A pod that blocks the job, and why."""

    pod: PodView
    role: Role
    why: ReasonMessage
    termination: ContainerTermination | None = None
    """How its container ended the last time, for an engine that keeps ending."""

    @property
    def since(self) -> datetime | None:
        """The earliest time at which it blocked the job."""
        return self.termination.finished_at if self.termination else self.pod.created_at

    @property
    def pod_ref(self) -> PodRef:
        """Its pod, for `status.lastFailure`."""
        container = self.termination.container if self.termination else ""
        return PodRef(self.role, self.pod.name, self.pod.node, container)

    @property
    def message_with_pod(self) -> str:
        """The message for a condition, which does not name the pod anywhere else."""
        return f"{self.role.value} pod {self.pod.name}: {self.why.message}"


def seconds_until_unseen(pod: PodView, now: datetime) -> float | None:
    """How long a scheduler may still take to look at a pod before it blocks the job; 0 when it does, None for
    a pod that it has looked at."""
    if not pod.unseen_by or pod.created_at is None:
        return None
    age = (now - pod.created_at).total_seconds()
    return min(max(0.0, UNSEEN_SECONDS - age), UNSEEN_SECONDS)  # clocks may disagree


def trainer_blocker(gang: Iterable[PodView], now: datetime) -> Blocker | None:
    """The first of these trainer pods that does not start, and not only because of another one."""
    problems = ((pod, _start_problem(pod, now, role=Role.TRAINER)) for pod in gang)
    found = [Blocker(pod, Role.TRAINER, why) for pod, why in problems if why]
    return min(found, key=lambda blocker: blocker.why.reason == Reason.WAITING_FOR_GROUP, default=None)


def engine_blocker(rollouts: Iterable[EngineView], now: datetime) -> Blocker | None:
    """The first rollout pod whose engine says that no retry can help, else the first that its node refused,
    else the first that does not start or keeps ending."""
    rollouts = tuple(rollouts)
    ended = [blocker for pod in rollouts if (blocker := _ended(pod))]
    for blocker in ended:
        if blocker.termination and blocker.termination.exit_code == ExitCode.USER_ERROR:
            return blocker
    for pod in rollouts:
        if pod.is_over and not pod.is_deleting and pod.start_problem:
            return Blocker(pod, Role.ROLLOUT, pod.start_problem)
    by_pod = {blocker.pod.uid: blocker for blocker in ended}
    for pod in rollouts:
        if pod.uid in by_pod:
            return by_pod[pod.uid]  # how the container ended explains more than the kubelet's back-off does
        why = _start_problem(pod, now, role=Role.ROLLOUT)
        if pod.is_alive and not pod.is_ready and why:
            return Blocker(pod, Role.ROLLOUT, why)
    return None


def _start_problem(pod: PodView, now: datetime, *, role: Role) -> ReasonMessage | None:
    """What its scheduler or its node says, or that no scheduler has said anything for too long."""
    if pod.start_problem is None and not pod.is_deleting and seconds_until_unseen(pod, now) == 0:
        return not_seen(pod.unseen_by, role=role)
    return pod.start_problem


def _ended(pod: EngineView) -> Blocker | None:
    """A rollout pod that is not ready because its engine ended and was started again, or one of several that
    make up an engine, which is to be replaced."""
    if pod.has_several_pods and pod.is_over and not pod.is_deleting and pod.termination:
        why = explain_termination(pod.termination)
        return Blocker(pod, Role.ROLLOUT, why, pod.termination)
    termination = pod.last_termination
    if not pod.is_alive or pod.is_ready or termination is None or not is_unready_since(pod, termination):
        return None
    return Blocker(pod, Role.ROLLOUT, _restarted(pod, termination), termination)


def _restarted(pod: PodView, termination: ContainerTermination) -> ReasonMessage:
    times = "once" if pod.restarts == 1 else f"{pod.restarts} times"
    why = explain_termination(termination)
    return ReasonMessage(why.reason, f"the engine has been restarted {times}: {why.message}")


def is_unready_since(pod: PodView, termination: ContainerTermination) -> bool:
    """Whether the pod is not ready because its container ended. An engine that has been ready since then
    waits for something else, such as the trainer to admit it again."""
    if pod.unready_since is None or termination.finished_at is None:
        return True
    return pod.unready_since <= termination.finished_at + _LATE_REPORT
