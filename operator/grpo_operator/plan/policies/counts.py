"""Policy: counts of pods and the phase."""

from datetime import datetime

from grpo_api.contract.environment import Role
from grpo_api.v1alpha1.status import Phase, RoleStatus, RolloutStatus
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.draft import Draft, Stage
from grpo_operator.plan.queue import is_for_queue

_WITHOUT_PODS = frozenset({Stage.ENDED, Stage.SUSPENDED, Stage.STOPPING})
"""Stages in which there are to be no pods, and in which the phase is decided already."""
IN_TRAINER = "in trainer"
"""Text in the ROLLOUT column of a job whose engines have no pods."""


def count_pods(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """The counts that `kubectl get` and `kubectl scale` read."""
    draft = draft.with_status(observed_generation=observed.job.generation)
    if draft.stage is Stage.SUSPENDED:
        draft = draft.with_status(phase=Phase.QUEUED if is_for_queue(draft.status) else Phase.SUSPENDED)
    elif draft.status.phase in (Phase.QUEUED, Phase.SUSPENDED):
        draft = draft.with_status(phase=Phase.PENDING)
    snapshot = draft.known_snapshot
    if snapshot is None:
        return draft
    engines = [pod for pod in observed.rollouts if pod.is_alive]
    has_pods = draft.stage not in _WITHOUT_PODS
    num_trainers = snapshot.spec.trainer.num_nodes if has_pods else 0
    num_engines = snapshot.num_engines if has_pods else 0
    trainers_ready = sum(pod.is_ready and not pod.is_deleting for pod in draft.facts.gang.values())
    engines_ready = sum(pod.is_ready for pod in engines)
    return draft.with_status(
        phase=_phase(draft) if has_pods else draft.status.phase,
        trainer=RoleStatus(
            desired=num_trainers, ready=trainers_ready, summary=f"{trainers_ready}/{num_trainers}"
        ),
        rollout=RolloutStatus(
            desired=num_engines,
            ready=engines_ready,
            summary=f"{engines_ready}/{num_engines}" if snapshot.has_rollout else IN_TRAINER,
            replicas=len(engines),
            current=draft.status.rollout.current if draft.is_running else 0,
            selector=_rollout_selector(snapshot),
        ),
    )


def _rollout_selector(snapshot: JobSnapshot) -> str:
    """Empty where there is nothing to scale: an autoscaler then says that it cannot."""
    labels = snapshot.selector(Role.ROLLOUT) if snapshot.has_rollout else {}
    return ",".join(f"{key}={value}" for key, value in labels.items())


def _phase(draft: Draft) -> Phase:
    if draft.is_running:
        return Phase.RUNNING
    if not draft.facts.missing and draft.stage is Stage.ACTIVE:
        has_run = draft.status.phase is Phase.RUNNING
        return Phase.RUNNING if has_run else Phase.STARTING
    return Phase.RESTARTING if draft.status.attempt > 1 else Phase.PENDING
