"""What keeps pods from doing their work: found once, for the conditions and for status.lastFailure.

A hindrance ends nothing. A pod that does not start may still start, and a rollout pod that ended is
started again; but a person who looks at the job must find the sentence.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from grpo_api.contract.environment import Role
from grpo_api.v1alpha1.status import ConditionStatus, ConditionType, LastFailure
from grpo_operator.names import rollout_position, trainer_position
from grpo_operator.observed import Ending, Observed, PodView, Trouble
from grpo_operator.plan.causes import describe
from grpo_operator.plan.conditions import condition
from grpo_operator.plan.draft import Draft, Stage
from grpo_operator.plan.gang_view import current_gang
from grpo_operator.plan.rollout import is_alive

PATIENCE_SECONDS = 5.0
"""Age from which a pod that does not start is written down as a failure: a scheduler that binds a volume, or
a node that has just come, needs a moment, which is nobody's failure."""
_TOLD_WITHIN = timedelta(seconds=30.0)
"""How much later than the end of its container a node may say that a pod is not ready."""
_POSITIONS = {Role.TRAINER: trainer_position, Role.ROLLOUT: rollout_position}


@dataclass(frozen=True)
class Hindrance:
    """One pod and what is wrong with it."""

    pod: PodView
    role: Role
    trouble: Trouble
    ending: Ending | None = None
    """How its container ended the last time, if that is what is wrong."""

    @property
    def since(self) -> datetime | None:
        """From when on it may have been seen."""
        return self.ending.finished_at if self.ending else self.pod.created_at

    @property
    def sentence(self) -> str:
        """For a condition, which says nothing else about which pod it means."""
        return f"{self.role.value} pod {self.pod.name}: {self.trouble.message}"


def trainer_hindrance(observed: Observed, *, attempt: int) -> Hindrance | None:
    """The first trainer pod of the attempt that does not start."""
    for pod in current_gang(observed, attempt=attempt).values():
        if pod.trouble:
            return Hindrance(pod, Role.TRAINER, pod.trouble)
    return None


def engine_hindrance(observed: Observed) -> Hindrance | None:
    """The first rollout pod that its node refused, that does not start, or whose engine keeps ending."""
    for pod in observed.rollouts:
        if pod.is_over and not pod.is_deleting and pod.trouble:
            return Hindrance(pod, Role.ROLLOUT, pod.trouble)
    for pod in observed.rollouts:
        if not is_alive(pod) or pod.is_ready:
            continue
        if pod.last_ending and _keeps_unready(pod, pod.last_ending):
            # how it ended explains more than the kubelet's back-off
            reason, message = describe(pod.last_ending)
            times = "once" if pod.restarts == 1 else f"{pod.restarts} times"
            told = Trouble(reason, f"the engine has been restarted {times}: {message}")
            return Hindrance(pod, Role.ROLLOUT, told, pod.last_ending)
        if pod.trouble:
            return Hindrance(pod, Role.ROLLOUT, pod.trouble)
    return None


def _keeps_unready(pod: PodView, ending: Ending) -> bool:
    """Whether that its container ended is why the pod is not ready. An engine that was ready afterwards waits
    for something else now, such as the trainer that admits it again."""
    if pod.unready_since is None or ending.finished_at is None:
        return True
    return pod.unready_since <= ending.finished_at + _TOLD_WITHIN


def note_hindrance(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Policy: what hinders a job now is its last failure, and stays so when it is overcome.

    What hindered it before the current attempt was decided on does not hide why that was.
    """
    attempt = draft.status.attempt
    if draft.stage is Stage.ACTIVE and draft.blocked:
        return draft.with_status(last_failure=_without_pod(draft.blocked, attempt=attempt))
    if draft.stage is not Stage.ACTIVE or draft.run is None or draft.waits_for:
        return draft
    found = trainer_hindrance(observed, attempt=attempt) or engine_hindrance(observed)
    return _note_pod(draft, observed, found, now) if found else _note_refusal(draft, observed)


def _note_pod(draft: Draft, observed: Observed, found: Hindrance, now: datetime) -> Draft:
    young = 0.0 if found.ending else _young_seconds(found.pod, now)
    if young > 0:
        return draft.waking_after(young)
    if _is_of_before(found, draft, observed):
        return draft
    return draft.with_status(last_failure=_failure(found, attempt=draft.status.attempt))


def _note_refusal(draft: Draft, observed: Observed) -> Draft:
    refusal = observed.refusal
    if refusal is None or all(child.name != refusal.child for child in draft.create):
        return draft
    return draft.with_status(last_failure=_refused(refusal, attempt=draft.status.attempt))


def _young_seconds(pod: PodView, now: datetime) -> float:
    if pod.created_at is None or pod.is_over:
        return 0.0
    age = (now - pod.created_at).total_seconds()
    return PATIENCE_SECONDS - age if age >= 0 else 0.0  # clocks that disagree must not make it wait


def _is_of_before(found: Hindrance, draft: Draft, observed: Observed) -> bool:
    began = _began_at(draft, observed)
    if draft.status.attempt == 1 or began is None or found.since is None:
        return False
    return found.since < began


def _began_at(draft: Draft, observed: Observed) -> datetime | None:
    """When the attempt was decided on; once it runs, and the condition no longer tells that, when its first
    pod was made."""
    decided = condition(draft.status, ConditionType.RESTARTING)
    if decided and decided.status == ConditionStatus.TRUE:
        return decided.last_transition_time
    gang = current_gang(observed, attempt=draft.status.attempt).values()
    return min((pod.created_at for pod in gang if pod.created_at), default=None)


def _failure(found: Hindrance, *, attempt: int) -> LastFailure:
    return LastFailure(
        attempt=attempt,
        role=found.role.value,
        pod=found.pod.name,
        node=found.pod.node,
        container=found.ending.container if found.ending else "",
        reason=found.trouble.reason,
        exit_code=found.ending.exit_code if found.ending else None,
        message=found.trouble.message[:4096],
    )


def _refused(refusal: Trouble, *, attempt: int) -> LastFailure:
    """A child that the API server does not take: a pod that does not exist has a name all the same."""
    role = next((role for role, of in _POSITIONS.items() if of(refusal.child)), None)
    told = _without_pod(refusal, attempt=attempt)
    return told.model_copy(update={"role": role.value, "pod": refusal.child}) if role else told


def _without_pod(trouble: Trouble, *, attempt: int) -> LastFailure:
    return LastFailure(
        attempt=attempt, role="", pod="", reason=trouble.reason, message=trouble.message[:4096]
    )
