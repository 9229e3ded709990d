"""The planner: a list of small policies, each a pure function in a file of its own.

To add one, write its file and name it in `policies`. Order matters: what ends a job comes before what
keeps it going, and the policies that describe the result come last.
"""

from datetime import datetime

from grpo_operator.observed import Observed
from grpo_operator.plan.announce import announcements
from grpo_operator.plan.completion import complete_when_done
from grpo_operator.plan.counts import count_pods
from grpo_operator.plan.draft import Draft, Plan, Policy
from grpo_operator.plan.explain import explain
from grpo_operator.plan.failure import end_attempt_on_failure
from grpo_operator.plan.finished import release_pods, stay_finished
from grpo_operator.plan.freeze import freeze
from grpo_operator.plan.gang import keep_one_gang
from grpo_operator.plan.hindrance import note_hindrance
from grpo_operator.plan.network import close_ports
from grpo_operator.plan.progress import fold_progress
from grpo_operator.plan.rollout import keep_replicas
from grpo_operator.plan.shared import provide_shared
from grpo_operator.plan.startup import keep_startup_deadline
from grpo_operator.plan.validate import refuse_invalid


def policies(*, runtime_image: str, has_network_policies: bool) -> tuple[Policy, ...]:
    """Every decision about a job, in order."""
    return (
        stay_finished,  # an end is final
        refuse_invalid,  # a spec that cannot be read ends the job with its sentence
        freeze(runtime_image),  # what this run is, written down once
        fold_progress,  # the trainer's newest numbers
        complete_when_done,  # pod 0 has done every step
        end_attempt_on_failure,  # one lost trainer pod ends the attempt, and so does a stalled trainer
        keep_startup_deadline,  # an attempt gets to its first step in time
        keep_one_gang,  # older attempts go, then the current one comes
        keep_replicas,  # rollout pods, replaced at once
        provide_shared,  # what pods need comes before them
        close_ports(is_wanted=has_network_policies),  # to all but the job's own pods
        release_pods,  # a finished job gives its hardware back
        note_hindrance,  # a pod that cannot start, an engine that keeps ending, a refused child
        count_pods,  # counts and phase
        explain,  # conditions
    )


def make_plan(
    observed: Observed, *, runtime_image: str, now: datetime, has_network_policies: bool = True
) -> Plan:
    """What to do about a job. Nothing for one that is being deleted: its children go by their owner."""
    if observed.job.is_deleting:
        return Plan(status=observed.job.status)
    draft = Draft(status=observed.job.status)
    for policy in policies(runtime_image=runtime_image, has_network_policies=has_network_policies):
        draft = policy(draft, observed, now)
    return Plan(
        status=draft.status,
        create=draft.create,
        delete=draft.delete,
        requeue_after=draft.requeue_after,
        announcements=announcements(draft, observed),
    )
