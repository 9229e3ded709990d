"""Policy: the job is complete when trainer pod 0 has done every step, also if nobody saw it end."""

from datetime import datetime

from grpo_operator.observe.observed import Observed, PodView
from grpo_operator.plan.draft import Draft
from grpo_operator.plan.ends import complete
from grpo_operator.plan.facts import has_reported

TEARDOWN_SECONDS = 60.0
"""How long the other trainer pods may take to end by themselves after pod 0."""


def complete_when_done(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Exit code 0 of pod 0 means that the last step is done and its checkpoint is written: what happens to
    the other pods afterwards changes nothing about the result."""
    first = draft.facts.first
    if _is_taken_away(draft) and _has_reported_the_end(draft):
        return _complete(draft, observed, now, how=", as the trainer reported before its pod was taken away")
    if first is None or not first.is_done:
        return draft
    wait = _teardown_left(first, now)
    if wait > 0 and any(pod.is_alive for pod in draft.facts.gang.values()):
        return draft.waking_after(wait)
    return _complete(draft, observed, now)


def _complete(draft: Draft, observed: Observed, now: datetime, *, how: str = "") -> Draft:
    # an operator that has read no report since the start does not know how many steps epochs are
    total = draft.status.total_steps or draft.status.step
    steps = f"all {total} steps" if total else "all steps"
    done = draft.with_status(step=total, progress=f"{total}/{total}")
    return complete(done, observed, now, message=f"{steps} are done{how}")


def _is_taken_away(draft: Draft) -> bool:
    """Whether pod 0 existed, and the cluster or a person took it away, or a suspension did, before its end
    was read."""
    facts = draft.facts
    if facts.first is None:
        return (facts.was_complete and 0 in facts.missing) or draft.status.is_suspended
    return facts.first.disruption is not None and not facts.first.is_done


def _has_reported_the_end(draft: Draft) -> bool:
    """Whether this attempt reported its last step, and where there is a claim also its last checkpoint, which
    it reports when everything is written. The status has the newest report of any operator. An attempt that
    begins with that checkpoint has reported it before it uploads: only the exit code says that it has."""
    status, snapshot = draft.status, draft.known_snapshot
    if (
        snapshot is None
        or snapshot.spec.export
        or not has_reported(status, attempt=status.attempt)
        or status.total_steps == 0
        or status.step < status.total_steps
    ):
        return False
    is_saved = status.checkpoint_step is not None and status.checkpoint_step >= status.total_steps
    return is_saved or snapshot.spec.checkpoint.claim_name is None


def _teardown_left(first: PodView, now: datetime) -> float:
    if first.termination is None or first.termination.finished_at is None:
        return 0.0
    return TEARDOWN_SECONDS - (now - first.termination.finished_at).total_seconds()
