"""A real kube-apiserver with the GRPOJob CRD, started for these tests alone and taken down after them."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import config

from grpo_cluster import lifecycle
from grpo_cluster.versions import program_path
from grpo_cluster.waiting import wait_until

from .api_server import Jobs, Kubectl, own_instance
from .fake_kubelet import FakeKubelet
from .operator_harness import OPERATORS, Namespace, OperatorProcess, killed_at_the_end

CRD = Path(__file__).parents[2] / "crds" / "grpojobs.yaml"


@pytest.fixture(scope="session")
def kubeconfig() -> Iterator[Path]:
    """The administrator's kubeconfig of an API server that knows GRPOJobs; no node, no scheduler."""
    with own_instance() as settings:
        # A run that was killed may have left its server behind.
        lifecycle.down(settings)
        lifecycle.up(settings, num_nodes=0)
        try:
            kubectl = Kubectl(program_path("kubectl"), settings.kubeconfig)
            kubectl.run("apply", "--server-side", "-f", str(CRD))
            wait_until(
                lambda: "grpojob" in kubectl.run("api-resources", "--api-group=grpo.dev", check=False),
                timeout_seconds=30,
                poll_seconds=0.3,
                what="the API server to serve GRPOJobs",
            )
            yield settings.kubeconfig
        finally:
            lifecycle.down(settings)


@pytest.fixture(scope="session", autouse=True)
def no_fork_outlives_the_session() -> Iterator[None]:
    yield
    OPERATORS.close()


@pytest.fixture(scope="session")
def kubectl(kubeconfig: Path) -> Kubectl:
    """kubectl on that server."""
    return Kubectl(program_path("kubectl"), kubeconfig)


@pytest.fixture(scope="session")
def jobs(kubeconfig: Path) -> Jobs:
    """GRPOJobs on that server."""
    return Jobs(config.new_client_from_config(str(kubeconfig)))


@pytest.fixture
def namespace(kubeconfig: Path) -> Iterator[Namespace]:
    """A namespace for one test."""
    yield from new_namespace(kubeconfig, "test")


@pytest.fixture
def elsewhere(kubeconfig: Path) -> Iterator[Namespace]:
    """Another namespace of the same cluster."""
    yield from new_namespace(kubeconfig, "elsewhere")


def new_namespace(kubeconfig: Path, name: str) -> Iterator[Namespace]:
    """One whose name begins so, until the test has ended."""
    made = Namespace(kubeconfig, f"{name}-{secrets.token_hex(3)}")
    made.create()
    yield made
    made.delete()


@pytest.fixture
def kubelet(namespace: Namespace) -> FakeKubelet:
    """What reports about the namespace's pods."""
    return FakeKubelet(namespace)


@pytest.fixture
def operator(namespace: Namespace, tmp_path: Path) -> Iterator[OperatorProcess]:
    """An operator of the namespace, to be started by the test."""
    made = OperatorProcess(namespace, tmp_path / "operator.log")
    with killed_at_the_end(made):
        yield made
