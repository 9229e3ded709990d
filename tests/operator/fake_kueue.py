"""A stand-in for Kueue's decisions: what Kueue 0.17 writes into the status of a Workload. It has no quota and
decides nothing by itself; a test says what it decides."""

from typing import Any

AT = "2026-11-21T12:00:00Z"


def condition(workload: dict[str, Any], kind: str, *, is_met: bool, reason: str, message: str = "") -> None:
    """Write a condition of a Workload."""
    conditions = workload.setdefault("status", {}).setdefault("conditions", [])
    made = {"type": kind, "status": "True" if is_met else "False", "reason": reason, "message": message}
    conditions[:] = [c for c in conditions if c["type"] != kind] + [{**made, "lastTransitionTime": AT}]
    meta = workload["metadata"]
    meta["resourceVersion"] = str(int(meta["resourceVersion"]) + 1)


def conditions(workload: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """(status, reason) of each condition of a Workload."""
    found = workload.get("status", {}).get("conditions", ())
    return {c["type"]: (c["status"], c["reason"]) for c in found}


def keep_waiting(workload: dict[str, Any], message: str) -> None:
    """There is no quota."""
    condition(workload, "QuotaReserved", is_met=False, reason="Pending", message=message)


def reserve(workload: dict[str, Any], *, flavor: str = "gpu", **counts: int) -> None:
    """There is quota of this flavor for all pods that are not reclaimable, or for so many of a set; admission
    checks are not over."""
    status = workload.setdefault("status", {})
    reclaimable = {each["name"]: each["count"] for each in status.get("reclaimablePods", ())}
    status["admission"] = {
        "clusterQueue": "all",
        "podSetAssignments": [
            {
                "name": pod_set["name"],
                "count": counts.get(pod_set["name"], pod_set["count"] - reclaimable.get(pod_set["name"], 0)),
                "flavors": {"cpu": flavor, "nvidia.com/gpu": flavor},
            }
            for pod_set in workload["spec"]["podSets"]
        ],
    }
    condition(workload, "QuotaReserved", is_met=True, reason="QuotaReserved", message="Quota reserved")
    if any(c["type"] == "Evicted" for c in workload["status"]["conditions"]):
        before = next(c for c in workload["status"]["conditions"] if c["type"] == "Evicted")
        message = f"Previously: {before['message']}"
        condition(workload, "Evicted", is_met=False, reason="QuotaReserved", message=message)


def admit(workload: dict[str, Any], *, flavor: str = "gpu", **counts: int) -> None:
    """It may have pods."""
    reserve(workload, flavor=flavor, **counts)
    condition(workload, "Admitted", is_met=True, reason="Admitted", message="The workload is admitted")


def evict(workload: dict[str, Any], *, reason: str = "Preempted", message: str = "to make room") -> None:
    """Its pods have to go. Its quota stays reserved until it is given back."""
    condition(workload, "Evicted", is_met=True, reason=reason, message=message)
