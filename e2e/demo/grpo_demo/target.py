"""The cluster of the demo: the local one, or one of the user's with a registry for the images."""

import json
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

from grpo_cluster import lifecycle
from grpo_cluster.settings import ClusterError, ClusterSettings
from grpo_cluster.versions import program_path
from grpo_images.local import ensure_loaded
from grpo_images.registry import publish
from grpo_images.sources import OPERATOR, RUNTIME


@dataclass(frozen=True)
class Target:
    """A cluster: its kubectl and helm commands, and the images it can run."""

    kubectl: tuple[str, ...]
    helm: tuple[str, ...]
    operator_image: str
    runtime_image: str

    def run_kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl and return what it printed. Raises ClusterError with its error output."""
        return _run([*self.kubectl, *arguments], stdin=stdin)

    def run_helm(self, *arguments: str) -> str:
        """Run helm and return what it printed. Raises ClusterError with its error output."""
        return _run([*self.helm, *arguments])

    def get(self, kind: str, *arguments: str) -> dict[str, Any]:
        """An object or a list as JSON."""
        answer: dict[str, Any] = json.loads(self.run_kubectl("get", kind, *arguments, "--output", "json"))
        return answer


def local_target() -> Target:
    """The local cluster with the images of the working tree; it is built and started if it does not run."""
    settings = ClusterSettings.for_instance()
    lifecycle.up(settings, num_nodes=1)
    kubeconfig = str(settings.kubeconfig)
    return Target(
        kubectl=(str(program_path("kubectl")), "--kubeconfig", kubeconfig),
        helm=(str(program_path("helm")), "--kubeconfig", kubeconfig),
        operator_image=ensure_loaded(OPERATOR),
        runtime_image=ensure_loaded(RUNTIME),
    )


def named_target(context: str, registry: str, *, base: str) -> Target:
    """A cluster of the user's kubeconfig; the images are built on `base` and pushed to `registry`."""
    for program in ("kubectl", "helm"):
        if shutil.which(program) is None:
            raise ClusterError(f"CONTEXT= needs {program} on PATH: install it, or leave CONTEXT= out")
    return Target(
        kubectl=("kubectl", "--context", context),
        helm=("helm", "--kube-context", context),
        operator_image=publish(OPERATOR, registry=registry, base=base),
        runtime_image=publish(RUNTIME, registry=registry, base=base),
    )


def _run(command: list[str], *, stdin: str | None = None) -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout
