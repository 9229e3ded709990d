"""One namespace of the local cluster with the operator installed, as a person with kubectl sees it."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from grpo_cluster.settings import ClusterError
from grpo_demo.install import install
from grpo_demo.target import Target
from grpo_runtime.report.metrics_file import METRICS_FILE, MetricsRecord, read_metrics

Object = dict[str, Any]
T = TypeVar("T")

POLL_SECONDS = 0.5
PATIENCE = 3
"""A factor for every timeout: test files run side by side, and the disk may be cold."""


@dataclass(frozen=True)
class Namespace:
    """A namespace of a cluster. Every wait has a deadline, and its error says what was seen last."""

    target: Target
    name: str

    # Acting

    def install_operator(self, values: Mapping[str, str] | None = None) -> None:
        """Install the chart, with `values` of it by path, and wait until the operator is ready."""
        install(self.target, self.name, values=values)

    def apply(self, *objects: Object) -> None:
        """`kubectl apply` of objects into the namespace."""
        for item in objects:
            self.kubectl("apply", "--filename", "-", stdin=json.dumps(item))

    def delete_pod(self, name: str, *, is_graceful: bool = True) -> None:
        """Delete a pod. Without grace it is killed and removed at once, as when a node is lost."""
        force = () if is_graceful else ("--grace-period=0", "--force")
        self.kubectl("delete", "pod", name, "--wait=false", *force)

    def scale_operator(self, replicas: int) -> None:
        """Stop (0) or start (1) the operator and wait until it has stopped or is ready."""
        self.kubectl("scale", "deployment/grpo-operator", f"--replicas={replicas}")
        self.wait_until(
            lambda: len(self.pods("app.kubernetes.io/name=grpo-operator")) == replicas,
            f"{replicas} operator pods",
            timeout_seconds=60,
        )
        if replicas:
            self.kubectl("rollout", "status", "deployment/grpo-operator", "--timeout=60s")

    def execute(self, pod: str, *command: str) -> str:
        """Run a command in a pod and return its output."""
        return self.kubectl("exec", pod, "--", *command)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.target.run_kubectl("--namespace", self.name, *arguments, stdin=stdin)

    # Looking

    def job(self, name: str) -> Object:
        return self.target.get("grpojob", name, "--namespace", self.name)

    def status(self, name: str) -> Object:
        status: Object = self.job(name).get("status", {})
        return status

    def pods(self, selector: str) -> list[Object]:
        answer = self.target.get("pods", "--namespace", self.name, "--selector", selector)
        items: list[Object] = answer["items"]
        return items

    def pods_of(self, job: str, role: str) -> list[Object]:
        """Pods of a role that have not ended and are not being deleted."""
        found = self.pods(f"grpo.dev/job={job},grpo.dev/role={role}")
        return [
            pod
            for pod in found
            if "deletionTimestamp" not in pod["metadata"]
            and pod["status"].get("phase") not in ("Succeeded", "Failed")
        ]

    def children(self, job: str) -> dict[str, Object]:
        """Everything in the namespace that carries the job's label, as kind/name -> object."""
        kinds = "pods,services,configmaps,secrets,networkpolicies"
        items = self.target.get(kinds, "--namespace", self.name, "--selector", f"grpo.dev/job={job}")["items"]
        return {f"{item['kind']}/{item['metadata']['name']}": item for item in items}

    def claim_folder(self, claim: str) -> Path:
        """The folder of this machine that holds the files of a bound claim."""
        volume = self.target.get("pvc", claim, "--namespace", self.name)["spec"]["volumeName"]
        spec = self.target.get("pv", volume)["spec"]
        return Path(spec["local"]["path"])

    def output_folder(self, claim: str) -> Path:
        """The output directory of the one job that wrote to a claim."""
        (folder,) = self.claim_folder(claim).iterdir()
        return folder

    def metrics(self, claim: str) -> list[MetricsRecord]:
        """The steps that the one job on a claim has finished."""
        return read_metrics(self.output_folder(claim) / METRICS_FILE)

    # Waiting

    def wait_until(self, look: Callable[[], T], what: str, *, timeout_seconds: float) -> T:
        """Call `look` until it returns a true value, and return that.

        Raises ClusterError, which names `what` it waited for, after the timeout.
        """
        timeout_seconds *= PATIENCE
        deadline = time.monotonic() + timeout_seconds
        while True:
            seen = look()
            if seen:
                return seen
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"waited {timeout_seconds:.0f} s for {what}, saw {seen!r}\n{self.describe()}"
                )
            time.sleep(POLL_SECONDS)

    def wait_for_step(self, job: str, step: int, *, timeout_seconds: float = 180) -> Object:
        """Wait until `step` steps are done in status. Raises ClusterError when the job fails before."""

        def reached() -> Object | None:
            status = self.status(job)
            if status.get("phase") == "Failed":
                raise ClusterError(f"job {job} failed: {status.get('lastFailure')}\n{self.describe()}")
            return status if status.get("step", 0) >= step else None

        return self.wait_until(reached, f"step {step} of {job}", timeout_seconds=timeout_seconds)

    def wait_for_finish(self, job: str, *, timeout_seconds: float = 420) -> Object:
        """Wait with `kubectl wait --for=condition=Finished` and return the status."""
        limit = f"--timeout={PATIENCE * timeout_seconds:.0f}s"
        self.kubectl("wait", "--for=condition=Finished", f"grpojob/{job}", limit)
        return self.status(job)

    def describe(self) -> str:
        """The jobs and what they say, the pods, and the end of each pod's log, after a failed test."""
        said = "{range .items[*].status.conditions[*]}{.type}={.status} {.reason}: {.message}{'\\n'}{end}"
        parts = [
            self.kubectl("get", "grpojobs,pods", "--output", "wide"),
            self.kubectl("get", "grpojobs", "--output", f"jsonpath={said}"),
        ]
        for pod in self.pods("app.kubernetes.io/managed-by=grpo-operator"):
            name = pod["metadata"]["name"]
            try:
                parts.append(f"--- {name}\n{self.kubectl('logs', name, '--tail=15')}")
            except ClusterError as error:
                parts.append(f"--- {name}: {error}")
        return "\n".join(parts)


def copy_job(name: str, *, claim: str | None = None, **changes: Mapping[str, Any]) -> Object:
    """The copy example with two ranks and two engines; `changes` are merged into the sections of the spec."""
    limits = {"memory": "4Gi"}
    requests = {"cpu": "100m", "memory": "512Mi"}
    spec: Object = {
        "model": {"source": "builtin://tiny"},
        "dataset": {"source": "builtin://copy"},
        "rewards": [{"name": "copy", "builtin": "char_accuracy"}],
        "algorithm": {
            "steps": 100,
            "promptsPerStep": 16,
            "groupSize": 8,
            "optimizer": {"learningRate": 0.003},
        },
        "sampling": {"maxTokens": 4},
        "trainer": {"processesPerNode": 2, "resources": {"limits": limits, "requests": requests}},
        "engine": {"maxModelLen": 64, "kvCacheMemory": "64Mi"},
        "rollout": {"replicas": 2, "resources": {"limits": limits, "requests": requests}},
    }
    if claim:
        spec["checkpoint"] = {"claimName": claim, "everySteps": 10}
    for section, values in changes.items():
        spec[section] = {**spec.get(section, {}), **values}
    return {"apiVersion": "grpo.dev/v1alpha1", "kind": "GRPOJob", "metadata": {"name": name}, "spec": spec}


def volume_claim(name: str) -> Object:
    """A claim on the local cluster's default storage class."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "100Mi"}}},
    }
