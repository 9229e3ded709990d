"""Policy: the job is complete when trainer pod 0 has done every step."""

from datetime import datetime

from grpo_operator.observe.observed import Observed, PodView
from grpo_operator.plan.draft import Draft, Stage
from grpo_operator.plan.outcome import complete

TEARDOWN_SECONDS = 60.0
"""How long the other trainer pods may take to end by themselves after pod 0."""


def complete_when_done(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Exit code 0 of pod 0 means that the last step and its checkpoint are written: what happens to the
    others afterwards, or to an engine, changes nothing about the result."""
    if draft.stage is not Stage.ACTIVE or draft.status.attempt == 0:
        return draft
    first = draft.facts.first
    if first is None or not first.is_done:
        return draft
    wait = _teardown_left(first, now)
    if wait > 0 and any(pod.is_alive for pod in draft.facts.gang.values()):
        return draft.waking_after(wait)
    total = draft.status.total_steps
    done = draft.with_status(step=total, progress=f"{total}/{total}")
    return complete(done, observed, now, message=f"all {total} steps are done")


def _teardown_left(first: PodView, now: datetime) -> float:
    if first.termination is None or first.termination.finished_at is None:
        return 0.0
    return TEARDOWN_SECONDS - (now - first.termination.finished_at).total_seconds()
