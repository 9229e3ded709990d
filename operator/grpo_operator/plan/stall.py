"""When a trainer that answers, but no longer makes progress, counts as failed. Pure.

What counts is its heartbeat. While completions are sampled, that rises only with samples that are finished.
"""

from grpo_api.contract.endpoints import TRAINER_CONTAINER
from grpo_api.contract.environment import Role
from grpo_api.judge.causes import Cause, certain
from grpo_api.judge.clocks import has_begun, stalled
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.draft import Draft
from grpo_operator.plan.last_failure import Place

_SHORTEST_WAIT_SECONDS = 5.0


def stalled_causes(draft: Draft, observed: Observed, snapshot: JobSnapshot) -> list[Cause[Place]]:
    """A trainer whose answers have stayed the same for `stallTimeoutSeconds`.

    A trainer that does not answer is not stalled: it may well work where this operator cannot reach it. One
    that still loads models is not stalled either: startupDeadlineSeconds limits that.
    """
    liveness, progress = observed.remembered.report.liveness, draft.facts.last_progress
    if liveness is None or progress is None or not has_begun(progress) or not draft.is_running:
        return []
    quiet_seconds = liveness.quiet_seconds
    limit = snapshot.spec.stall_timeout_seconds
    if quiet_seconds < limit:
        return []
    first = draft.facts.gang[0]
    why = stalled(progress, seconds=quiet_seconds, limit_seconds=limit, last_sign_at=liveness.changed_at)
    place = Place(Role.TRAINER, first.name, first.node, TRAINER_CONTAINER)
    return [certain(why, place)]


def wake_when_stalled(draft: Draft, observed: Observed, snapshot: JobSnapshot) -> Draft:
    """Plan again at the time from which the trainer counts as stalled unless it makes progress."""
    liveness = observed.remembered.report.liveness
    if liveness is None or not draft.is_running:
        return draft
    left = snapshot.spec.stall_timeout_seconds - liveness.quiet_seconds
    return draft.waking_after(max(_SHORTEST_WAIT_SECONDS, left))
