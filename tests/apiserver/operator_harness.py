"""What the operator's tests on a real API server need: the operator as a process, and its namespace.

Operators are forks of one process that has imported theirs: that takes a second of a core, and many tests
less.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config
from kubernetes.client import ApiException

from grpo_api.contract.labels import ATTEMPT, JOB, ROLE
from grpo_operator.cluster.client import FIELD_MANAGER

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

from forks import Fork, ScriptServer

OPERATORS = ScriptServer(module="grpo_operator.cli")
"""Forks every operator of this test session."""
PROGRAM = Path(__file__).with_name("operator_program.py")
EXAMPLES = Path(__file__).parents[2] / "examples"
GROUP = ("grpo.dev", "v1alpha1")


def wait_until(
    what: str, check: Callable[[], Any], *, seconds: float = 60.0, poll_seconds: float = 0.1
) -> Any:
    """The first true answer of `check`; fails the test naming `what` after the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        found = check()
        if found:
            return found
        if time.monotonic() > deadline:
            pytest.fail(f"after {seconds} s still not: {what}")
        time.sleep(poll_seconds)


class Namespace:
    """One test's namespace on the API server, read and written with an administrator's rights."""

    def __init__(self, kubeconfig: Path, name: str) -> None:
        self.name = name
        self.kubeconfig = kubeconfig
        api = config.new_client_from_config(str(kubeconfig))
        self.core = client.CoreV1Api(api)
        self.authorization = client.AuthorizationV1Api(api)
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

    def jobs(self) -> list[dict[str, Any]]:
        return self.objects.list_namespaced_custom_object(*GROUP, self.name, "grpojobs")["items"]

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
        found = self.core.list_namespaced_pod(self.name, label_selector=_selector(role, attempt)).items
        return sorted(
            (pod for pod in found if pod.metadata.deletion_timestamp is None), key=lambda p: p.metadata.name
        )

    def num_pods(self, role: str, *, attempt: int | None = None) -> int:
        """How many `pods` has, without making objects of them, which takes the client 10 ms of a core."""
        found = self.core.list_namespaced_pod(
            self.name, label_selector=_selector(role, attempt), _preload_content=False
        )
        items = json.loads(found.data)["items"]
        return sum("deletionTimestamp" not in pod["metadata"] for pod in items)

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
        return versions | {job["metadata"]["name"]: job["metadata"]["resourceVersion"] for job in self.jobs()}

    def delete(self) -> None:
        self.core.delete_namespace(self.name)

    def _has_service_account(self) -> bool:
        try:
            self.core.read_namespaced_service_account("default", self.name)
        except ApiException:
            return False
        return True


def _selector(role: str, attempt: int | None) -> str:
    return f"{ROLE}={role}" + (f",{ATTEMPT}={attempt}" if attempt else "")


class OperatorProcess:
    """`python -m grpo_operator` on one namespace, forked."""

    def __init__(self, namespace: Namespace, log: Path, *, kubeconfig: Path | None = None) -> None:
        self._namespace = namespace
        self._kubeconfig = kubeconfig or namespace.kubeconfig
        self._log = log
        self._process: Fork | None = None

    def start(self, *extra: str, until: str = "watching", is_everywhere: bool = False) -> None:
        """Start it and wait until its log says that it watches, or something else."""
        # A successor would otherwise wait for the Lease of one that was killed.
        where = ["--all-namespaces"] if is_everywhere else ["-n", self._namespace.name]
        arguments = [*where, "--leader-elect=false", *extra]
        arguments += ["--kubeconfig", str(self._kubeconfig), "--runtime-image", "example.test/runtime:1"]
        start = self._log.stat().st_size if self._log.exists() else 0
        process = self._process = OPERATORS.start(
            PROGRAM, *arguments, environment=os.environ, output=self._log
        )
        wait_until(
            f"the operator says `{until}`",
            lambda: process.poll() is not None or until.encode() in self._log.read_bytes()[start:],
            seconds=60,
        )
        assert process.poll() is None, f"the operator ended with {process.wait()}:\n{self.log()}"

    def kill(self) -> None:
        """Kill it, as a crash does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(timeout=60)
        self._process = None

    def stop(self) -> int:
        """Ask it to stop; returns its exit code. It must say nothing of a failure as it ends."""
        assert self._process is not None
        start = self._log.stat().st_size
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(timeout=60)
        self._process = None
        assert b"Traceback" not in self._log.read_bytes()[start:], self.log()
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
        lambda: (
            namespace.num_pods(role, **more) == count
            and len(found := namespace.pods(role, **more)) == count
            and (found,)
        ),
    )
    return found


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
