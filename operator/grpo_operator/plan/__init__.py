"""The planner: a list of small policies, each a pure function in a file of its own in `policies`.

What several policies need is beside that folder: the facts about the attempt, causes and what follows from
them, conditions, the draft. To add a policy, write its file and name it in `policies`. Order matters: what
ends a job comes before what keeps it going, and the policies that describe the result come last.
"""

from collections.abc import Sequence
from datetime import datetime

from grpo_operator.cluster.kinds import KubeObject
from grpo_operator.observe.observed import Observed
from grpo_operator.permissions import NO_PERMISSIONS, Permissions
from grpo_operator.plan.draft import Draft, Plan, Policy
from grpo_operator.plan.events import events_of
from grpo_operator.plan.policies.accept_loss import accept_loss
from grpo_operator.plan.policies.completion import complete_when_done
from grpo_operator.plan.policies.conditions import write_conditions
from grpo_operator.plan.policies.counts import count_pods
from grpo_operator.plan.policies.failure import end_attempt_on_failure
from grpo_operator.plan.policies.freeze import freeze
from grpo_operator.plan.policies.gang import end_earlier_attempts
from grpo_operator.plan.policies.give_up_pods import give_up_pods
from grpo_operator.plan.policies.network import provide_network_policy
from grpo_operator.plan.policies.pin_image import pin_image
from grpo_operator.plan.policies.progress import fold_progress
from grpo_operator.plan.policies.record_blocker import record_blocker
from grpo_operator.plan.policies.release_pods import release_pods
from grpo_operator.plan.policies.replace_frozen import replace_frozen
from grpo_operator.plan.policies.require_network_policy import require_network_policy
from grpo_operator.plan.policies.require_permission import require_permission
from grpo_operator.plan.policies.resume import resume_after_another
from grpo_operator.plan.policies.rollout import keep_replicas
from grpo_operator.plan.policies.room import wait_for_room
from grpo_operator.plan.policies.shared import provide_shared
from grpo_operator.plan.policies.startup import keep_startup_deadline
from grpo_operator.plan.policies.stay_finished import stay_finished
from grpo_operator.plan.policies.trainer import keep_trainers
from grpo_operator.plan.policies.validate import wait_until_readable
from grpo_operator.settings import GIVE_BACK_TIMES, GiveBackTimes


def policies(
    *,
    runtime_image: str,
    has_network_policies: bool,
    reports_from: Sequence[KubeObject] | None,
    give_back: GiveBackTimes,
    permissions: Permissions,
) -> tuple[Policy, ...]:
    """Every decision about a job, in order."""
    return (
        stay_finished,  # an end is final
        wait_until_readable,  # a spec that this operator cannot read waits for one that can
        # pods that nothing else protects wait for it
        require_network_policy(is_made=has_network_policies),
        require_permission(permissions),  # a job gets no more than the operator allows
        resume_after_another,  # a job that resumes from another one waits for its end
        freeze(runtime_image),  # what this job runs, written down once
        pin_image,  # one build of the image for all pods of the run
        fold_progress,  # the trainer's newest numbers
        complete_when_done,  # pod 0 has done every step
        end_attempt_on_failure,  # one lost trainer pod ends the attempt, and so does a stalled trainer
        keep_startup_deadline,  # an attempt gets to its first step in time
        accept_loss,  # checkpoints that are gone are given up by a person only
        end_earlier_attempts,  # older attempts go before the current one comes
        wait_for_room(give_back),  # a gang that is not complete gives its nodes back
        keep_trainers,  # the gang of the current attempt
        replace_frozen,  # an engine that stands still gives its place up
        keep_replicas,  # rollout pods once the gang has nodes, replaced at once
        provide_shared,  # what pods need comes before them
        # only the job's own pods reach its pods, but for reports
        provide_network_policy(is_wanted=has_network_policies, reports_from=reports_from),
        release_pods,  # a finished job gives its hardware back
        record_blocker,  # a pod that cannot start, an engine that keeps ending, a refused child
        count_pods,  # counts and phase
        write_conditions,  # why it is as it is
    )


def make_plan(
    observed: Observed,
    *,
    runtime_image: str,
    now: datetime,
    has_network_policies: bool = True,
    reports_from: Sequence[KubeObject] | None = None,
    give_back: GiveBackTimes = GIVE_BACK_TIMES,
    permissions: Permissions = NO_PERMISSIONS,
) -> Plan:
    """What to do about a job. One that is being deleted only gives up its pods: its children are
    garbage-collected."""
    draft = Draft.begin(observed, now)
    decisions = policies(
        runtime_image=runtime_image,
        has_network_policies=has_network_policies,
        reports_from=reports_from,
        give_back=give_back,
        permissions=permissions,
    )
    for policy in (give_up_pods,) if observed.job.is_deleting else decisions:
        draft = policy(draft, observed, now)
    return Plan(
        status=draft.status,
        create=draft.create,
        delete=draft.delete,
        stop=draft.stop,
        requeue_after=draft.requeue_after,
        events=events_of(draft, observed),
        notes=draft.notes,
    )
