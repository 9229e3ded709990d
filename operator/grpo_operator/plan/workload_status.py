"""What Kueue learns from the status of a Workload: that its pods run, which of them need no quota any more,
and that the quota of one that was evicted is free. Pure."""

from dataclasses import replace
from datetime import datetime

from grpo_api.contract.environment import Role
from grpo_operator.cluster.kinds import KubeObject
from grpo_operator.observe.observed import WorkloadView
from grpo_operator.plan.draft import Draft, WorkloadPatch

_LONGEST_MESSAGE = 32768
_REQUEUED_AT_ONCE = frozenset({"Preempted", "NodeFailures"})
"""Reasons of an eviction after which Kueue puts a Workload back into its queue when it is told so. After any
other it does so by itself, or not at all."""

ConditionStates = dict[str, tuple[bool, str, str]]
"""(whether it is met, reason, message) by the type of a condition."""


def pods_ready(workload: WorkloadView, *, is_ready: bool) -> ConditionStates:
    """What becomes of the condition PodsReady. One that was never True is not written."""
    known = workload.condition("PodsReady")
    if is_ready:
        has_recovered = known is not None and known["reason"] in ("WaitForRecovery", "Recovered")
        return {"PodsReady": (True, "Recovered" if has_recovered else "Started", "all pods run")}
    if known is None or known["reason"] == "WaitForStart":
        return {}
    return {"PodsReady": (False, "WaitForRecovery", "a pod has ended and is made again")}


def reclaimable(base: WorkloadView, *, num_engines: int, pods_per_engine: int) -> KubeObject:
    """The rollout pods of the Workload of a job that need no quota: all but those of its first `num_engines`
    engines. Of a part that was admitted also what makes up no engine. It only grows, and holds as long as the
    Workload. Kueue counts it from all pods for which the Workload was made, also where it was admitted with
    fewer."""
    engines = base.pod_sets.get(Role.ROLLOUT.value)
    if engines is None:
        return {}
    needed = min(num_engines, engines.count // pods_per_engine) * pods_per_engine
    if needed >= engines.count:
        return {}
    return {"reclaimablePods": [{"name": Role.ROLLOUT.value, "count": engines.declared - needed}]}


def with_quota_given_back(draft: Draft, workload: WorkloadView, now: datetime) -> Draft:
    """The quota of an evicted Workload goes back to Kueue, now that its pods are gone."""
    evicted = workload.condition("Evicted")
    if evicted is None or not (workload.is_evicted and workload.has_quota):
        return draft
    reason, message = evicted["reason"], evicted.get("message", "")
    states = {
        "QuotaReserved": (False, "Pending", message),
        "Admitted": (False, "NoReservation", "The workload has no reservation"),
        "Requeued": (reason in _REQUEUED_AT_ONCE, reason, message),
    }
    if workload.condition("PodsReady") is not None:
        states["PodsReady"] = (False, "WaitForStart", "no pod is there before the next admission")
    return patched(draft, workload, now, states, other={"admission": None})


def patched(
    draft: Draft,
    workload: WorkloadView,
    now: datetime,
    states: ConditionStates,
    *,
    other: KubeObject | None = None,
) -> Draft:
    """The draft with these conditions and fields in the status of a Workload; the same where that changes
    nothing. The whole list of conditions goes along: a merge patch replaces it."""
    known = {found["type"]: found for found in workload.conditions}
    changed = {
        kind: made
        for kind, state in states.items()
        if (made := _condition(kind, *state, workload=workload, now=now)) != known.get(kind)
    }
    if not changed and not other:
        return draft
    conditions = tuple((known | changed).values())
    patch = WorkloadPatch(workload.name, workload.resource_version, conditions, other or {})
    return replace(draft, patch=(*draft.patch, patch))


def _condition(
    kind: str, is_met: bool, reason: str, message: str, *, workload: WorkloadView, now: datetime
) -> KubeObject:
    status, known = "True" if is_met else "False", workload.condition(kind)
    since = (
        known["lastTransitionTime"] if known and known["status"] == status else f"{now:%Y-%m-%dT%H:%M:%SZ}"
    )
    made = {"type": kind, "status": status, "reason": reason, "message": message[:_LONGEST_MESSAGE]}
    if known is not None and made.items() <= known.items():
        return known
    return made | {"lastTransitionTime": since, "observedGeneration": workload.generation}
