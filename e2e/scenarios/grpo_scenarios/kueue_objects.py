"""Queues, flavors and priorities of Kueue, and Workloads, of which tests play the owner."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from grpo_scenarios.kueue import API_VERSION, GROUP
from grpo_scenarios.namespace import Namespace, Object

_WORKLOADS = f"workloads.{GROUP}"


def flavor(name: str, *, node_labels: Mapping[str, str] | None = None) -> Object:
    """A kind of nodes; `node_labels` become the node selector of the pods that get it."""
    return _object("ResourceFlavor", name, {"nodeLabels": dict(node_labels or {})})


def cluster_queue(name: str, *, flavor: str, quota: Mapping[str, str], is_drained: bool = False) -> Object:
    """A queue for all namespaces. A Workload of higher priority takes its quota from those of lower; one that
    `is_drained` takes it from all."""
    resources = [{"name": each, "nominalQuota": value} for each, value in quota.items()]
    return _object(
        "ClusterQueue",
        name,
        {
            "namespaceSelector": {},
            "stopPolicy": "HoldAndDrain" if is_drained else "None",
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": [
                {"coveredResources": list(quota), "flavors": [{"name": flavor, "resources": resources}]}
            ],
        },
    )


def local_queue(name: str, *, cluster_queue: str) -> Object:
    """The name by which the Workloads of a namespace ask for a queue."""
    return _object("LocalQueue", name, {"clusterQueue": cluster_queue})


def priority_class(name: str, value: int) -> Object:
    return {**_object("WorkloadPriorityClass", name), "value": value}


def workload(
    name: str, *, queue: str, priority: tuple[str, int], pods: Mapping[str, int], cpu: str
) -> Object:
    """A Workload of nobody: `pods` has how many there are of each pod set, and each asks for `cpu`."""
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    name_of_class, value = priority
    return _object(
        "Workload",
        name,
        {
            "queueName": queue,
            "priorityClassRef": {"group": GROUP, "kind": "WorkloadPriorityClass", "name": name_of_class},
            "priority": value,
            "podSets": [{"name": each, "count": count, "template": template} for each, count in pods.items()],
        },
    )


def state(item: Object, type_: str) -> tuple[str, str]:
    """Status and reason of a condition of a Workload; empty where it has none of that type."""
    conditions = item.get("status", {}).get("conditions", ())
    return next(((each["status"], each["reason"]) for each in conditions if each["type"] == type_), ("", ""))


def is_admitted(item: Object) -> bool:
    """Whether its pods may run."""
    return state(item, "Admitted")[0] == "True" and state(item, "Evicted")[0] != "True"


@dataclass(frozen=True)
class Workloads:
    """The Workloads of a namespace."""

    namespace: Namespace

    def get(self, name: str) -> Object:
        return self.namespace.target.get(_WORKLOADS, name, "--namespace", self.namespace.name)

    def of_job(self, job: str) -> Object:
        """That of the trainer and the first engines of a GRPOJob."""
        return self.get(self.namespace.status(job)["queue"]["workload"])

    def all_of_job(self, job: str) -> list[Object]:
        """That one, and those of engines that have one of their own."""
        selector = ("--selector", f"grpo.dev/job={job}")
        answer = self.namespace.target.get(_WORKLOADS, "--namespace", self.namespace.name, *selector)
        items: list[Object] = answer["items"]
        return items

    def wait_for_admission(self, name: str, *, timeout_seconds: float = 30) -> Object:
        return self._wait(name, is_admitted, "is admitted", timeout_seconds=timeout_seconds)

    def wait_for_eviction(self, name: str) -> Object:
        return self._wait(
            name, lambda seen: state(seen, "Evicted")[0] == "True", "is evicted", timeout_seconds=30
        )

    def give_back(self, found: Object) -> None:
        """What its owner writes to an evicted one once its last pod has ended."""
        message = "its pods have ended"
        conditions = (
            {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": message},
            {"type": "Admitted", "status": "False", "reason": "NoReservation", "message": message},
            {"type": "Requeued", "status": "True", "reason": "Preempted", "message": message},
        )
        self._write(found, *conditions, admission=None)

    def finish(self, name: str) -> None:
        """What the owner writes to one whose pods are done: its quota is free."""
        done = {"type": "Finished", "status": "True", "reason": "Succeeded", "message": "its pods are done"}
        self._write(self.get(name), done)

    def delete(self, name: str) -> None:
        self.namespace.kubectl("delete", _WORKLOADS, name)

    def _wait(
        self, name: str, look: Callable[[Object], bool], what: str, *, timeout_seconds: float
    ) -> Object:
        def found() -> Object | None:
            seen = self.get(name)
            return seen if look(seen) else None

        return self.namespace.wait_until(found, f"{name}, which {what}", timeout_seconds=timeout_seconds)

    def _write(self, found: Object, *conditions: Object, **others: object) -> None:
        """Merge conditions into the status of a Workload, if it is still as it was found."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        new = {each["type"]: {**each, "lastTransitionTime": now} for each in conditions}
        merged = {**{each["type"]: each for each in found["status"]["conditions"]}, **new}
        body = {
            "metadata": {"resourceVersion": found["metadata"]["resourceVersion"]},
            "status": {"conditions": list(merged.values()), **others},
        }
        name = found["metadata"]["name"]
        change = ("--subresource=status", "--type=merge", f"--patch={json.dumps(body)}")
        self.namespace.kubectl("patch", _WORKLOADS, name, *change)


def _object(kind: str, name: str, spec: Object | None = None) -> Object:
    made: Object = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}}
    return made if spec is None else {**made, "spec": spec}
