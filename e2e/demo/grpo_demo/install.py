"""Installs the operator into a cluster with its Helm chart."""

from collections.abc import Mapping

from grpo_cluster.console import step
from grpo_demo.target import Target
from grpo_images.sources import REPOSITORY

RELEASE = "grpo-operator"
CHART = REPOSITORY / "charts/grpo-operator"


def ensure_namespace(target: Target, namespace: str) -> None:
    """Create a namespace that only admits `restricted` pods; the product needs no other."""
    target.run_kubectl(
        "apply",
        "--filename",
        "-",
        stdin=f'{{"apiVersion": "v1", "kind": "Namespace", "metadata": {{"name": "{namespace}", "labels": '
        '{"pod-security.kubernetes.io/enforce": "restricted"}}}',
    )


def install(target: Target, namespace: str, *, values: Mapping[str, str] | None = None) -> None:
    """Install or upgrade the chart, with `values` of it by path, and wait until the operator is ready."""
    with step(f"installing the operator into namespace {namespace} with Helm"):
        ensure_namespace(target, namespace)
        chosen = [argument for item in (values or {}).items() for argument in ("--set", "=".join(item))]
        repository, _, tag = target.operator_image.rpartition(":")
        target.run_helm(
            "upgrade", "--install", RELEASE, str(CHART), "--namespace", namespace,
            "--set", f"image.repository={repository}", "--set-string", f"image.tag={tag}",
            "--set", f"runtimeImage={target.runtime_image}",
            *chosen,
            # The whole cluster has one CRD: the newest release takes it over.
            "--take-ownership", "--wait", "--timeout", "120s",
        )  # fmt: skip
