"""Scenarios run on real pods of the local cluster, each file in a namespace of its own."""

from collections.abc import Iterator

import pytest

from grpo_demo.install import ensure_namespace
from grpo_demo.target import Target, local_target
from grpo_scenarios.namespace import Namespace

LONGEST_FIRST = (
    "kills",
    "install",
    "fields_of_grpo",
    "colocated",
    "causes",
    "pod_template",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long files first: files run side by side, and a long one that begins last would run alone."""
    places = {f"test_{name}.py": place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.fixture(scope="session")
def target() -> Target:
    """The local cluster with the images of the working tree; it is started if it does not run."""
    return local_target()


@pytest.fixture(scope="module")
def namespace(target: Target, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A fresh namespace with an operator, which gets the values of the chart in the module's CHART_VALUES, if
    it has them. It is deleted at the end, with all that is in it."""
    name = request.module.__name__.rpartition(".")[2].removeprefix("test_").replace("_", "-")
    namespace = Namespace(target=target, name=f"e2e-{name}")
    target.run_kubectl("delete", "namespace", namespace.name, "--ignore-not-found", "--wait")
    ensure_namespace(target, namespace.name)
    namespace.install_operator(getattr(request.module, "CHART_VALUES", None))
    yield namespace
    # There is no need to wait: the next file has a namespace of its own.
    target.run_kubectl("delete", "namespace", namespace.name, "--wait=false")
