"""What a job says while it waits for a pod to end, and when it asks whether the pod's node is lost. Pure."""

from dataclasses import replace
from datetime import datetime, timedelta

from grpo_operator.observe.observed import PodView
from grpo_operator.plan.draft import Draft

LONG_PAST_GRACE = timedelta(seconds=60)
"""How long after its grace period a pod is still there when its node is asked about. A node that works ends a
pod within seconds of that. The operator may read no nodes, so it cannot know."""


def on_node(pod: PodView) -> str:
    """Where the pod is, as a part of a sentence; empty where it has no node."""
    return f" on node {pod.node}" if pod.node else ""


def waiting_for_end(draft: Draft, pod: PodView, now: datetime, *, message: str) -> Draft:
    """The draft that waits for the end of `pod`, as `message` says."""
    if not pod.node or pod.must_end_by is None:
        return replace(draft, waits_for=message)
    left = (pod.must_end_by + LONG_PAST_GRACE - now).total_seconds()
    if left > 0:
        return replace(draft, waits_for=message).waking_after(left)
    question = (
        f"its grace period was over at {pod.must_end_by:%Y-%m-%dT%H:%M:%SZ}: is the node lost? Then delete "
        "the node, or taint it with node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    )
    return replace(draft, waits_for=f"{message}; {question}")
