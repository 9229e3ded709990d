"""Policies: what blocks a job now is written into lastFailure, and stays there once it is overcome."""

from datetime import datetime

from grpo_api.contract.environment import Role
from grpo_api.contract.reasons import Reason
from grpo_operator.children.names import rollout_position, trainer_position
from grpo_operator.observe.observed import Observed, PodView
from grpo_operator.plan.blockers import Blocker, seconds_until_unseen
from grpo_operator.plan.draft import Draft
from grpo_operator.plan.last_failure import NO_POD, PodRef, last_failure

PATIENCE_SECONDS = 5.0
"""Age from which a pod that does not start is recorded. A scheduler that binds a volume, or a node that has
just joined, needs a moment, and that is no failure."""


def record_blocker(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Write a pod that does not start or that others take away, an engine that keeps ending or a refused
    child into lastFailure.

    What blocked the job before the current attempt was decided must not hide why that attempt follows.
    """
    refusal = observed.remembered.refusal
    if draft.waits_for:
        is_refused = refusal is not None and refusal.why.reason == draft.waits_for.reason
        return _with_refusal(draft, observed) if is_refused else draft
    if draft.early_end:
        return draft.with_status(last_failure=last_failure(draft.early_end, attempt=draft.status.attempt))
    pods = (*draft.facts.gang.values(), *observed.rollouts)
    for wait in filter(None, (seconds_until_unseen(pod, now) for pod in pods)):
        draft = draft.waking_after(wait)
    blocker = draft.facts.trainer_blocker or draft.facts.engine_blocker
    return _with_blocker(draft, blocker, now) if blocker else _with_refusal(draft, observed)


def record_why_left_alone(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Write why this operator leaves the job as it is into lastFailure. That a job waits for another one is
    no failure: somebody asked for it."""
    why = draft.left_alone
    if why is None or why.reason is Reason.WAITING_FOR_RESUMED_JOB:
        return draft
    return draft.with_status(last_failure=last_failure(why, attempt=draft.status.attempt))


def _with_blocker(draft: Draft, blocker: Blocker, now: datetime) -> Draft:
    wait = 0.0 if blocker.termination else _patience_left(blocker.pod, now)
    if wait > 0:
        return draft.waking_after(wait)
    if _is_of_earlier_attempt(draft, blocker):
        return draft
    failure = last_failure(
        blocker.why,
        attempt=draft.status.attempt,
        pod=blocker.pod_ref,
        exit_code=blocker.termination.exit_code if blocker.termination else None,
    )
    return draft.with_status(last_failure=failure)


def _with_refusal(draft: Draft, observed: Observed) -> Draft:
    refusal = observed.remembered.refusal
    if refusal is None or all(child.name != refusal.child for child in draft.create):
        return draft
    failure = last_failure(refusal.why, attempt=draft.status.attempt, pod=_ref_of(refusal.child))
    return draft.with_status(last_failure=failure)


def _ref_of(child: str) -> PodRef:
    """A pod that was refused has a name although it does not exist."""
    if trainer_position(child):
        return PodRef(Role.TRAINER, child)
    return PodRef(Role.ROLLOUT, child) if rollout_position(child) else NO_POD


def _patience_left(pod: PodView, now: datetime) -> float:
    if pod.created_at is None or pod.is_over:
        return 0.0
    age = (now - pod.created_at).total_seconds()
    return PATIENCE_SECONDS - age if age >= 0 else 0.0  # clocks that disagree must not make it wait


def _is_of_earlier_attempt(draft: Draft, blocker: Blocker) -> bool:
    began = draft.facts.decided_at or draft.facts.first_pod_at
    if draft.status.attempt == 1 or began is None or blocker.since is None:
        return False
    return blocker.since < began
