"""What the processes of the cluster use, and how many requests the operator sends."""

import re
from collections.abc import Mapping

import psutil

from grpo_cluster import processes
from grpo_cluster.settings import ClusterSettings
from grpo_scale.fake_nodes import NAMESPACE
from grpo_scale.observer import JOBS_PATH
from grpo_scale.requests import Requests

# The operator is the only service account outside kube-system.
_DISPATCHED = re.compile(
    r'^apiserver_flowcontrol_dispatched_requests_total\{flow_schema="service-accounts",.*\} (\S+)$',
    re.MULTILINE,
)
_WRITTEN = (
    JOBS_PATH,
    *(
        f"/api/v1/namespaces/{NAMESPACE}/{kind}"
        for kind in ("pods", "services", "configmaps", "secrets", "events")
    ),
    f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies",
    f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events",
)


async def num_requests(requests: Requests) -> float:
    """Requests of the operator since the API server started."""
    return sum(float(value) for value in _DISPATCHED.findall(await requests.metrics()))


async def versions(requests: Requests) -> dict[tuple[str, str], str]:
    """resourceVersion of everything that the operator writes, by path and name."""
    found = {}
    for path in _WRITTEN:
        for item in (await requests.send("GET", path))["items"]:
            meta = item["metadata"]
            found[path, meta["name"]] = meta["resourceVersion"]
    return found


def num_writes(before: Mapping[tuple[str, str], str], after: Mapping[tuple[str, str], str]) -> int:
    """Objects that were made, changed or deleted in between."""
    return sum(before.get(name) != after.get(name) for name in before.keys() | after.keys())


def busy_seconds() -> float:
    """CPU time of the whole machine so far."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - times.iowait - times.guest - times.guest_nice


def cpu_seconds(settings: ClusterSettings, operator: psutil.Process | None) -> dict[str, float]:
    """CPU time of each process so far, by name; `bench` is this process."""
    known = {
        name: psutil.Process(found.pid)
        for name, found in processes.recorded(settings).items()
        if found.is_alive
    }
    known |= {"bench": psutil.Process()} | ({"operator": operator} if operator else {})
    return {name: sum(process.cpu_times()[:2]) for name, process in known.items()}
