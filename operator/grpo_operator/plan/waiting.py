"""Why a pod is not made yet: another one must end first, or those before it were taken away at once. Pure."""

from dataclasses import replace
from datetime import datetime, timedelta

from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.judge.attempts import pause_seconds
from grpo_operator.observe.observed import Observed, PodView
from grpo_operator.plan.conditions import LONGEST_MESSAGE
from grpo_operator.plan.draft import Draft, EventDraft

LONG_PAST_GRACE = timedelta(seconds=60)
"""How long a pod may still be there after its grace period, before the message asks whether its node is lost.
A node that works ends a pod within seconds. The operator may not read nodes, so it cannot know."""


def waiting_for_end(draft: Draft, pod: PodView, now: datetime, why: ReasonMessage) -> Draft:
    """The draft of a job that makes no pods before the end of `pod`, as `why` says."""
    if not pod.node or pod.must_end_by is None:
        return replace(draft, waits_for=why)
    left = (pod.must_end_by + LONG_PAST_GRACE - now).total_seconds()
    if left > 0:
        return replace(draft, waits_for=why).waking_after(left)
    ended_by = f"{pod.must_end_by:%Y-%m-%dT%H:%M:%SZ}"
    question = (
        f"; its grace period was over at {ended_by}: is the node lost? Then delete the node, or taint it "
        "with node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    )
    asked = replace(why, message=why.message[: LONGEST_MESSAGE - len(question)] + question)
    warning = EventDraft(asked, key=f"{pod.name}/{ended_by}", is_warning=True)
    return replace(draft, waits_for=asked, lost_node=warning)


def on_node(pod: PodView) -> str:
    """Where the pod is, as a part of a sentence; empty where it has no node."""
    return f" on node {pod.node}" if pod.node else ""


def early_end(observed: Observed, slot: str, now: datetime) -> tuple[ReasonMessage, float] | None:
    """Why no pod is made in this slot now, and for how many seconds. None where none was taken away within
    seconds of its creation, after the first that was, and once the pause is over. The pause grows as that
    between attempts does."""
    found = observed.remembered.early_ends.get(slot)
    if found is None:
        return None
    until = found.ended_at + timedelta(seconds=pause_seconds(found.num))
    left = (until - now).total_seconds()
    if left <= 0:
        return None
    message = (
        f"pod {found.name} was taken away {found.lived_seconds:.0f} s after it was made, the last of "
        f"{found.num} in a row: something in the cluster deletes such pods, as a cleanup policy, a "
        "descheduler or a queue would, and the audit log of the API server names it; the next one is made at "
        f"{until:%Y-%m-%dT%H:%M:%SZ}"
    )
    return ReasonMessage(Reason.POD_DELETED, message), left
