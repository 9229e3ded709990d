"""Policy: counts of pods and the phase."""

from datetime import datetime

from grpo_api.contract.environment import Role
from grpo_api.v1alpha1.status import Phase, RoleStatus, RolloutStatus
from grpo_operator.children.run import Run
from grpo_operator.observed import Observed
from grpo_operator.plan.causes import is_done
from grpo_operator.plan.draft import Draft, Stage
from grpo_operator.plan.gang_view import current_gang, missing_indices
from grpo_operator.plan.rollout import is_alive

IN_TRAINER = "in trainer"
"""What stands in the ROLLOUT column of a job whose engines have no pods."""


def count_pods(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """What `kubectl get` and `kubectl scale` read."""
    draft = draft.with_status(observed_generation=observed.job.generation)
    if draft.run is None:
        return draft
    gang = current_gang(observed, attempt=draft.status.attempt).values()
    engines = [pod for pod in observed.rollouts if is_alive(pod)]
    is_active = draft.stage is Stage.ACTIVE
    num_trainers = draft.run.spec.trainer.num_nodes if is_active else 0
    num_engines = draft.run.num_rollout_pods if is_active else 0
    trainers_ready = sum(pod.is_ready and not pod.is_deleting for pod in gang)
    engines_ready = sum(pod.is_ready for pod in engines)
    return draft.with_status(
        phase=_phase(draft, draft.run, observed) if is_active else draft.status.phase,
        trainer=RoleStatus(
            desired=num_trainers, ready=trainers_ready, summary=f"{trainers_ready}/{num_trainers}"
        ),
        rollout=RolloutStatus(
            desired=num_engines,
            ready=engines_ready,
            summary=f"{engines_ready}/{num_engines}" if draft.run.has_rollout else IN_TRAINER,
            replicas=len(engines),
            current=draft.status.rollout.current if is_running(draft, observed) else 0,
            selector=_rollout_selector(draft.run),
        ),
    )


def _rollout_selector(run: Run) -> str:
    """Empty where there is nothing to scale: an autoscaler then says that it cannot."""
    labels = run.selector(Role.ROLLOUT) if run.has_rollout else {}
    return ",".join(f"{key}={value}" for key, value in labels.items())


def is_running(draft: Draft, observed: Observed) -> bool:
    """Whether every trainer pod of the current attempt runs, or has done its part."""
    if draft.stage is not Stage.ACTIVE or draft.run is None:
        return False
    gang = current_gang(observed, attempt=draft.status.attempt)
    if missing_indices(observed, draft.run, attempt=draft.status.attempt):
        return False
    return all(is_done(pod) or (pod.phase == "Running" and not pod.is_deleting) for pod in gang.values())


def _phase(draft: Draft, run: Run, observed: Observed) -> Phase:
    if is_running(draft, observed):
        return Phase.RUNNING
    if not missing_indices(observed, run, attempt=draft.status.attempt):
        has_run = draft.status.phase is Phase.RUNNING
        return Phase.RUNNING if has_run else Phase.STARTING
    return Phase.RESTARTING if draft.status.attempt > 1 else Phase.PENDING
