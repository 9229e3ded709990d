"""The planner: small policies, each a pure function, and the life cycle, which says when each of them runs.

A policy decides one thing and leaves alone what it is not about. Its file is in `policies`; what several of
them need is beside that folder: the facts about the attempt, causes and what follows from them, conditions,
the draft. To add a policy, write it and give it a row of `life_cycle`. A new stage of a job is a member of
`Stage`, named in the rows of the policies that run in it.
"""

from collections.abc import Sequence
from datetime import datetime

from grpo_operator.cluster.kinds import KubeObject
from grpo_operator.observe.observed import Observed
from grpo_operator.permissions import NO_PERMISSIONS, Permissions
from grpo_operator.plan.draft import Draft, Plan, Policy, Stage
from grpo_operator.plan.events import events_of
from grpo_operator.plan.policies.active_deadline import fail_without_pods, keep_active_deadline, stop
from grpo_operator.plan.policies.beginning import require_network_policy, require_permission
from grpo_operator.plan.policies.completion import complete_when_done
from grpo_operator.plan.policies.conditions import write_conditions
from grpo_operator.plan.policies.counts import count_pods
from grpo_operator.plan.policies.expiry import delete_when_expired
from grpo_operator.plan.policies.failure import accept_loss, end_attempt_on_failure
from grpo_operator.plan.policies.pod_groups import keep_pod_groups
from grpo_operator.plan.policies.progress import fold_progress
from grpo_operator.plan.policies.queue import choose_queue, keep_workloads
from grpo_operator.plan.policies.record_blocker import record_blocker, record_why_left_alone
from grpo_operator.plan.policies.release import give_up_pods, release_pods
from grpo_operator.plan.policies.resume import resume_after_another
from grpo_operator.plan.policies.rollout import keep_replicas, replace_hung
from grpo_operator.plan.policies.room import wait_for_room
from grpo_operator.plan.policies.shared import provide_network_policy, provide_shared
from grpo_operator.plan.policies.snapshot import begin, keep_snapshot, pin_image, wait_until_readable
from grpo_operator.plan.policies.startup import keep_startup_deadline
from grpo_operator.plan.policies.suspend import end_pods, suspend
from grpo_operator.plan.policies.trainer import end_earlier_attempts, keep_trainers
from grpo_operator.settings import GIVE_BACK_TIMES, GiveBackTimes


def life_cycle(
    *,
    runtime_image: str,
    has_network_policies: bool,
    reports_from: Sequence[KubeObject] | None,
    give_back: GiveBackTimes,
    permissions: Permissions,
) -> tuple[tuple[Policy, frozenset[Stage]], ...]:
    """Every decision about a job in order, each with the stages in which it is made.

    Order matters: what ends a job comes before what keeps it going, and what describes the result comes last.
    A decision may move the job to another stage, and the rows after it are those of that stage.
    """
    new, left_alone, active, held_back = Stage.NEW, Stage.LEFT_ALONE, Stage.ACTIVE, Stage.HELD_BACK
    suspended, stopping = Stage.SUSPENDED, Stage.STOPPING
    ended, deleted = Stage.ENDED, Stage.DELETED

    def during(*stages: Stage) -> frozenset[Stage]:
        return frozenset(stages)

    return (
        # a finalizer may hold a deleted job, but not its pods
        (give_up_pods, during(deleted)),
        # a spec that this operator cannot read waits for one that can
        (wait_until_readable, during(new)),
        # pods that nothing else protects wait for it
        (require_network_policy(is_made=has_network_policies), during(new)),
        # a job gets no more than the operator allows
        (require_permission(permissions), during(new)),
        # a job that resumes from another one waits for its end
        (resume_after_another, during(new)),
        # the queue that is to admit it
        (choose_queue, during(new, suspended)),
        # one that is suspended, or that its queue has not admitted, does not begin
        (suspend, during(new, left_alone)),
        # what this job runs, written down once
        (begin(runtime_image), during(new)),
        (keep_snapshot, during(active, held_back, suspended, stopping, ended)),
        # one build of the image for all pods of the run
        (pin_image, during(active, held_back)),
        # the trainer's newest numbers
        (fold_progress, during(left_alone, active, suspended, stopping)),
        # pod 0 has done every step
        (complete_when_done, during(left_alone, active, held_back, suspended, stopping)),
        # a person, a queue or a rule has the job wait without pods; no clock runs
        (suspend, during(left_alone, active, held_back, suspended)),
        # a job that has taken too long ends, and its pods save what they have
        (keep_active_deadline, during(left_alone, active, held_back)),
        (stop, during(stopping)),
        # one lost trainer pod ends the attempt, and so does a stalled trainer
        (end_attempt_on_failure, during(active, held_back)),
        # an attempt gets to its first step in time
        (keep_startup_deadline, during(active)),
        # only a person accepts that checkpoints are gone
        (accept_loss, during(left_alone, active, held_back)),
        # all pods go, with time for a checkpoint
        (end_pods, during(suspended, stopping)),
        (fail_without_pods, during(stopping)),
        # older attempts go before the current one comes
        (end_earlier_attempts, during(active, held_back)),
        # a gang that is not complete gives its nodes back, and comes again later
        (wait_for_room(give_back), during(active, held_back)),
        # the gang of the current attempt
        (keep_trainers, during(active)),
        # an engine that hangs is replaced
        (replace_hung, during(active)),
        # rollout pods once the gang has nodes, replaced at once
        (keep_replicas, during(active)),
        # pods that come together have a group before they are there
        (keep_pod_groups, during(left_alone, active, held_back, suspended, stopping, ended)),
        # what Kueue knows of the job, and what it gives back
        (keep_workloads(runtime_image), during(left_alone, active, held_back, suspended, ended, deleted)),
        # what pods need comes before them
        (provide_shared, during(active, held_back)),
        # only the job's own pods reach its pods, but for reports
        (
            provide_network_policy(is_wanted=has_network_policies, reports_from=reports_from),
            during(active, held_back),
        ),
        # a job that has ended gives its hardware back
        (release_pods, during(ended)),
        # and is deleted when its time is over
        (delete_when_expired, during(ended)),
        # a pod that cannot start, an engine that keeps ending, a refused child
        (record_blocker, during(active)),
        (record_why_left_alone, during(left_alone)),
        # counts and phase
        (count_pods, during(left_alone, active, held_back, suspended, stopping, ended)),
        # why it is as it is
        (write_conditions, during(left_alone, active, held_back, suspended, stopping, ended)),
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
    """What to do about a job. One that is being deleted only loses its pods: its children are
    garbage-collected."""
    draft = Draft.begin(observed, now)
    decisions = life_cycle(
        runtime_image=runtime_image,
        has_network_policies=has_network_policies,
        reports_from=reports_from,
        give_back=give_back,
        permissions=permissions,
    )
    for policy, stages in decisions:
        if draft.stage in stages:
            draft = policy(draft, observed, now)
    return Plan(
        status=draft.status,
        create=draft.create,
        delete=draft.delete,
        stop=draft.stop,
        patch=draft.patch,
        requeue_after=draft.requeue_after,
        events=events_of(draft, observed, now),
        notes=draft.notes,
    )
