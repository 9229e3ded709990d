"""A real API server of one's own: which cluster number it takes, and kubectl against it."""

import fcntl
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kubernetes import client
from kubernetes.client import ApiException

from grpo_cluster.settings import ClusterError, ClusterSettings, cache_dir

# Number 0 is everybody's cluster and the highest are those of the cluster's own tests.
_INSTANCES = (4, 3, 2, 1)
POD_COLLECTOR = "pod-garbage-collector-controller"
"""Deletes pods of a node that has not been there for 40 s, however new they are. The stand-in for a kubelet
binds all of its pods to one node that is never there, so this would delete them in the middle of a test."""


def without_nodes(instance: int) -> ClusterSettings:
    """A cluster in which the stand-in for a kubelet says what becomes of pods."""
    return replace(ClusterSettings.for_instance(instance), disabled_controllers=(POD_COLLECTOR,))


@contextmanager
def own_instance() -> Iterator[ClusterSettings]:
    """A cluster number nobody else's tests use at the moment; it is ours until the end of the block."""
    folder = cache_dir() / "cluster"
    folder.mkdir(parents=True, exist_ok=True)
    for instance in _INSTANCES:
        descriptor = os.open(folder / f"tests-{instance}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        try:
            yield without_nodes(instance)
        finally:
            os.close(descriptor)
        return
    raise ClusterError(
        f"the tests' clusters {_INSTANCES} are all in use: wait for the other test runs to end"
    )


@dataclass(frozen=True)
class Refusal:
    """What the API server said to a request it did not accept.

    `causes` are its (field, message) pairs; empty when it refused before it looked at the fields.
    """

    message: str
    causes: frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Kubectl:
    """kubectl as the administrator."""

    program: Path
    kubeconfig: Path

    def run(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Its standard output; a failure fails the test with what it said."""
        done = self._call(arguments, stdin)
        assert not check or done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def refusal_of(self, *arguments: str, stdin: str | None = None) -> str:
        """What it says on standard error when it fails, as it must here."""
        done = self._call(arguments, stdin)
        assert done.returncode != 0, f"kubectl {' '.join(arguments)} succeeded: {done.stdout}"
        return done.stderr

    def differences(self, *arguments: str) -> str:
        """What `kubectl diff` shows; empty where nothing would change."""
        done = self._call(("diff", *arguments), None)
        assert done.returncode in (0, 1), done.stderr
        assert bool(done.stdout) == (done.returncode == 1), done.stderr
        return done.stdout

    def get(self, *arguments: str) -> Any:
        """Objects as plain data."""
        return json.loads(self.run("get", *arguments, "-o", "json"))

    def _call(self, arguments: tuple[str, ...], stdin: str | None) -> subprocess.CompletedProcess[str]:
        command = [str(self.program), "--kubeconfig", str(self.kubeconfig), *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)


class Jobs:
    """GRPOJobs of the default namespace, as plain data."""

    _WHERE = ("grpo.dev", "v1alpha1", "default", "grpojobs")

    def __init__(self, api: client.ApiClient) -> None:
        self._objects = client.CustomObjectsApi(api)

    def create(self, job: dict[str, Any], *, is_dry_run: bool = False) -> Any:
        """As `kubectl create` does: a field that does not exist is an error."""
        more = {"dry_run": "All"} if is_dry_run else {}
        return self._objects.create_namespaced_custom_object(
            *self._WHERE, job, field_validation="Strict", **more
        )

    def try_create(self, job: dict[str, Any]) -> Refusal | None:
        """Why the API server would not take the job; None when it would. Nothing is stored."""
        try:
            self.create(job, is_dry_run=True)
        except ApiException as error:
            return _refusal(error)
        return None

    def try_patch(self, name: str, change: dict[str, Any]) -> Refusal | None:
        """Merge a change into a job; why the API server refused, or None when it is done."""
        try:
            self._objects.patch_namespaced_custom_object(*self._WHERE, name, change)
        except ApiException as error:
            return _refusal(error)
        return None

    def try_scale(self, name: str, replicas: int) -> Refusal | None:
        """What `kubectl scale` does; why the API server refused, or None when it is done."""
        try:
            self._objects.patch_namespaced_custom_object_scale(
                *self._WHERE, name, {"spec": {"replicas": replicas}}
            )
        except ApiException as error:
            return _refusal(error)
        return None

    def write_status(self, name: str, status: dict[str, Any]) -> Any:
        """Replace the status through its subresource; returns the job."""
        return self._objects.patch_namespaced_custom_object_status(
            *self._WHERE, name, {"status": status}, field_validation="Strict"
        )

    def get(self, name: str) -> Any:
        return self._objects.get_namespaced_custom_object(*self._WHERE, name)

    def scale(self, name: str) -> Any:
        """The Scale object that an autoscaler reads."""
        return self._objects.get_namespaced_custom_object_scale(*self._WHERE, name)

    def delete(self, name: str) -> None:
        self._objects.delete_namespaced_custom_object(*self._WHERE, name)


def _refusal(error: ApiException) -> Refusal:
    answer = json.loads(error.body)
    causes = answer.get("details", {}).get("causes", ())
    return Refusal(answer["message"], frozenset((cause["field"], cause["message"]) for cause in causes))
