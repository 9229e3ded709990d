"""What the operator's tests on a real API server need: the operator as a process, and a stand-in kubelet."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config
from kubernetes.client import ApiException

from grpo_api.contract.labels import ATTEMPT, JOB, ROLE
from grpo_operator.cluster.client import FIELD_MANAGER

EXAMPLES = Path(__file__).parents[2] / "examples"
GROUP = ("grpo.dev", "v1alpha1")


def wait_until(what: str, check: Callable[[], Any], *, seconds: float = 30.0) -> Any:
    """The first true answer of `check`; fails the test naming `what` after the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        found = check()
        if found:
            return found
        if time.monotonic() > deadline:
            pytest.fail(f"after {seconds} s still not: {what}")
        time.sleep(0.05)


class Namespace:
    """One test's namespace on the API server, read and written with an administrator's rights."""

    def __init__(self, kubeconfig: Path, name: str) -> None:
        self.name = name
        self.kubeconfig = kubeconfig
        api = config.new_client_from_config(str(kubeconfig))
        self.core = client.CoreV1Api(api)
        self.network = client.NetworkingV1Api(api)
        self.objects = client.CustomObjectsApi(api)

    def create(self) -> None:
        """Make it, with Pod Security `restricted`, and wait for its service account."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self.core.create_namespace({"metadata": {"name": self.name, "labels": labels}})
        wait_until("the default service account exists", self._has_service_account)

    def apply_job(self, name: str = "copy", **spec: Any) -> dict[str, Any]:
        """Create a GRPOJob from the first example; `spec` replaces sections of its spec."""
        job = yaml.safe_load((EXAMPLES / "copy-disaggregated.yaml").read_text())
        job["metadata"]["name"] = name
        job["spec"] |= spec
        return self.objects.create_namespaced_custom_object(*GROUP, self.name, "grpojobs", job)

    def job(self, name: str = "copy") -> dict[str, Any]:
        return self.objects.get_namespaced_custom_object(*GROUP, self.name, "grpojobs", name)

    def status(self, name: str = "copy") -> dict[str, Any]:
        return self.job(name).get("status", {})

    def condition(self, kind: str, name: str = "copy") -> dict[str, Any]:
        found = [c for c in self.status(name).get("conditions", ()) if c["type"] == kind]
        return found[0] if found else {}

    def patch_job(self, change: dict[str, Any], name: str = "copy") -> None:
        self.objects.patch_namespaced_custom_object(*GROUP, self.name, "grpojobs", name, change)

    def patch_status(self, change: dict[str, Any], name: str = "copy") -> None:
        """Write the status as the operator does, so that what is written stays the operator's."""
        job = self.job(name)
        meta = {"name": name, "namespace": self.name}
        body = {key: job[key] for key in ("apiVersion", "kind")}
        body |= {"metadata": meta, "status": job["status"] | change}
        self.objects.patch_namespaced_custom_object_status(
            *GROUP,
            self.name,
            "grpojobs",
            name,
            body,
            field_manager=FIELD_MANAGER,
            force=True,
            _content_type="application/apply-patch+yaml",
        )

    def delete_job(self, name: str = "copy") -> None:
        self.objects.delete_namespaced_custom_object(*GROUP, self.name, "grpojobs", name)

    def pods(self, role: str, *, attempt: int | None = None) -> list[Any]:
        """Pods of a role that are not on their way out, by name."""
        selector = f"{ROLE}={role}" + (f",{ATTEMPT}={attempt}" if attempt else "")
        found = self.core.list_namespaced_pod(self.name, label_selector=selector).items
        return sorted(
            (pod for pod in found if pod.metadata.deletion_timestamp is None), key=lambda p: p.metadata.name
        )

    def pods_of(self, job: str, role: str) -> list[Any]:
        """Pods of one job and role that are not on their way out."""
        return [pod for pod in self.pods(role) if pod.metadata.labels[JOB] == job]

    def versions(self) -> dict[str, str]:
        """resourceVersion of everything the operator could have written."""
        listed = [
            *self.core.list_namespaced_pod(self.name).items,
            *self.core.list_namespaced_service(self.name).items,
            *self.core.list_namespaced_config_map(self.name).items,
            *self.core.list_namespaced_secret(self.name).items,
            *self.network.list_namespaced_network_policy(self.name).items,
        ]
        versions = {f"{type(o).__name__}/{o.metadata.name}": o.metadata.resource_version for o in listed}
        jobs = self.objects.list_namespaced_custom_object(*GROUP, self.name, "grpojobs")["items"]
        return versions | {job["metadata"]["name"]: job["metadata"]["resourceVersion"] for job in jobs}

    def delete(self) -> None:
        self.core.delete_namespace(self.name)

    def _has_service_account(self) -> bool:
        try:
            self.core.read_namespaced_service_account("default", self.name)
        except ApiException:
            return False
        return True


class FakeKubelet:
    """Reports what a kubelet would about pods that no node runs."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    def bind(self, pod: Any, node: str = "fake-node") -> None:
        """Give the pod a node; from then on a deletion waits for this kubelet (`finish`)."""
        self._namespace.core.create_namespaced_binding(
            self._namespace.name,
            {
                "metadata": {"name": pod.metadata.name},
                "target": {"kind": "Node", "apiVersion": "v1", "name": node},
            },
            _preload_content=False,
        )

    def schedule(self, pod: Any, *, at: datetime, why: str = "") -> None:
        """Write when the pod got its node, or `why` it gets none."""
        scheduled = {"type": "PodScheduled", "status": "False" if why else "True"}
        scheduled |= {"reason": "Unschedulable", "message": why} if why else {}
        scheduled["lastTransitionTime"] = f"{at:%Y-%m-%dT%H:%M:%SZ}"
        self._report(pod, {"conditions": [scheduled]})

    def run(self, pod: Any, *, address: str = "127.0.0.1", image_id: str = "") -> None:
        """The pod has been scheduled, runs and is ready. It is not bound: a deletion does not wait for this
        kubelet, unless the test binds the pod."""
        running = {"running": {"startedAt": _now()}}
        self._report(
            pod,
            {
                "phase": "Running",
                "podIP": address,
                "podIPs": [{"ip": address}],
                "conditions": [
                    {"type": "PodScheduled", "status": "True", "lastTransitionTime": _now()},
                    {"type": "Ready", "status": "True"},
                ],
                "containerStatuses": [self._container(pod, running, ready=True, image_id=image_id)],
            },
        )

    def end(self, pod: Any, *, exit_code: int, message: str = "", reason: str = "Error") -> None:
        """The pod's container ends and is not restarted."""
        ended = {"exitCode": exit_code, "reason": reason, "message": message, "finishedAt": _now()}
        self._report(
            pod,
            {
                "phase": "Succeeded" if exit_code == 0 else "Failed",
                "conditions": [{"type": "Ready", "status": "False"}],
                "containerStatuses": [self._container(pod, {"terminated": ended})],
            },
        )

    def evict(self, pod: Any, *, message: str) -> None:
        """The kubelet ends the pod by itself."""
        killed = {"exitCode": 137, "reason": "Error", "finishedAt": _now()}
        self._report(
            pod,
            {
                "phase": "Failed",
                "reason": "Evicted",
                "message": message,
                "containerStatuses": [self._container(pod, {"terminated": killed})],
            },
        )

    def wait(self, pod: Any, *, reason: str, message: str) -> None:
        """The pod's container cannot start."""
        waiting = {"waiting": {"reason": reason, "message": message}}
        self._report(pod, {"phase": "Pending", "containerStatuses": [self._container(pod, waiting)]})

    def finish(self, name: str) -> None:
        """The pod's processes are gone: what a kubelet says at the end of a deletion."""
        self._namespace.core.delete_namespaced_pod(
            name, self._namespace.name, grace_period_seconds=0, propagation_policy="Background"
        )

    def _container(
        self, pod: Any, state: dict[str, Any], *, ready: bool = False, image_id: str = ""
    ) -> dict[str, Any]:
        spec = pod.spec.containers[0]
        return {
            "name": spec.name,
            "image": spec.image,
            "imageID": image_id,
            "ready": ready,
            "restartCount": 0,
            "state": state,
        }

    def _report(self, pod: Any, status: dict[str, Any]) -> None:
        self._namespace.core.patch_namespaced_pod_status(
            pod.metadata.name, self._namespace.name, {"status": status}
        )


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class OperatorProcess:
    """`python -m grpo_operator` on one namespace."""

    def __init__(self, namespace: Namespace, log: Path, *, kubeconfig: Path | None = None) -> None:
        self._namespace = namespace
        self._kubeconfig = kubeconfig or namespace.kubeconfig
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *extra: str, until: str = "watching", is_everywhere: bool = False) -> None:
        """Start it and wait until its log says that it watches, or something else."""
        # A successor would otherwise wait for the Lease of one that was killed.
        where = ["--all-namespaces"] if is_everywhere else ["-n", self._namespace.name]
        command = [sys.executable, "-m", "grpo_operator", *where, "--leader-elect=false", *extra]
        command += ["--kubeconfig", str(self._kubeconfig), "--runtime-image", "example.test/runtime:1"]
        start = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )
        process = self._process
        wait_until(
            f"the operator says `{until}`",
            lambda: process.poll() is not None or until.encode() in self._log.read_bytes()[start:],
            seconds=60,
        )
        assert process.poll() is None, f"the operator ended with {process.returncode}:\n{self.log()}"

    def kill(self) -> None:
        """Kill it, as a crash does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(timeout=10)
        self._process = None

    def stop(self) -> int:
        """Ask it to stop; returns its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(timeout=15)
        self._process = None
        return code

    def freeze(self) -> None:
        """Stop it with SIGSTOP, as on a machine that hangs."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it continue where it was stopped."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def wait_for_end(self, *, seconds: float) -> int:
        """The exit code of one that ends by itself."""
        assert self._process is not None
        code = self._process.wait(timeout=seconds)
        self._process = None
        return code

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None


def wait_for_pods(namespace: Namespace, role: str, count: int, **more: Any) -> list[Any]:
    """The pods of a role once there are `count` of them."""
    (found,) = wait_until(
        f"{count} {role} pods",
        lambda: len(found := namespace.pods(role, **more)) == count and (found,),
    )
    return found


def all_pods(namespace: Namespace, kubelet: FakeKubelet) -> list[Any]:
    """The pods of a job of one trainer pod and two engines, which come once the trainer pod is scheduled."""
    (trainer,) = wait_for_pods(namespace, "trainer", 1)
    kubelet.schedule(trainer, at=datetime.now(UTC))
    return [trainer, *wait_for_pods(namespace, "rollout", 2)]


def running_job(namespace: Namespace, kubelet: FakeKubelet, **spec: Any) -> list[Any]:
    """A job whose pods all run; returns its trainer pods."""
    num_trainers = spec.get("trainer", {}).get("numNodes", 1)
    namespace.apply_job(**spec)
    trainers = wait_for_pods(namespace, "trainer", num_trainers)
    for pod in trainers:
        kubelet.run(pod)
    for pod in wait_for_pods(namespace, "rollout", 2):
        kubelet.run(pod)
    wait_until("the job runs", lambda: namespace.status().get("phase") == "Running")
    wait_until("the engines are counted", lambda: namespace.status()["rollout"]["summary"] == "2/2")
    return trainers


@contextmanager
def killed_at_the_end(*operators: OperatorProcess) -> Iterator[None]:
    """None of these is left running. Their logs are printed, which pytest shows when the test has failed."""
    try:
        yield
    finally:
        for operator in operators:
            if operator.is_running:
                operator.thaw()
                operator.kill()
            print(operator.log())


def termination_message(exit_code: int, reason: str, message: str) -> str:
    """The termination message of a runtime."""
    written = {"schemaVersion": 1, "reason": reason, "message": message, "exitCode": exit_code}
    return json.dumps(written)
