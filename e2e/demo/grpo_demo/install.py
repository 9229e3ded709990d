"""The operator into a cluster, by its Helm chart."""

from grpo_cluster.console import step
from grpo_demo.target import Target
from grpo_images.sources import REPOSITORY

RELEASE = "grpo-operator"
CHART = REPOSITORY / "charts/grpo-operator"


def ensure_namespace(target: Target, namespace: str) -> None:
    """A namespace that admits restricted pods only, which is all the product needs."""
    target.run_kubectl(
        "apply",
        "--filename",
        "-",
        stdin=f'{{"apiVersion": "v1", "kind": "Namespace", "metadata": {{"name": "{namespace}", "labels": '
        '{"pod-security.kubernetes.io/enforce": "restricted"}}}',
    )


def install(target: Target, namespace: str) -> None:
    """Install or upgrade the chart and wait until the operator is ready."""
    with step(f"operator into namespace {namespace} by Helm"):
        ensure_namespace(target, namespace)
        repository, _, tag = target.operator_image.rpartition(":")
        target.run_helm(
            "upgrade", "--install", RELEASE, str(CHART), "--namespace", namespace,
            "--set", f"image.repository={repository}", "--set-string", f"image.tag={tag}",
            "--set", f"runtimeImage={target.runtime_image}",
            # The CRD is one for the whole cluster: whoever installs last looks after it.
            "--take-ownership", "--wait", "--timeout", "120s",
        )  # fmt: skip
