"""Scenarios run on real pods of the local cluster, each file in a namespace of its own."""

from collections.abc import Iterator

import pytest

from grpo_demo.install import ensure_namespace
from grpo_demo.target import Target, local_target
from grpo_scenarios.world import World

LONGEST_FIRST = ("kills", "learning", "causes", "guide_own_data", "colocated", "install", "readme")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first: files run side by side, and one that begins last would be waited for alone."""
    places = {f"test_{name}.py": place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.fixture(scope="session")
def target() -> Target:
    """The local cluster with the images of the working tree; started when it is not there."""
    return local_target()


@pytest.fixture(scope="module")
def world(target: Target, request: pytest.FixtureRequest) -> Iterator[World]:
    """A fresh namespace with an operator, deleted with all that is in it."""
    name = request.module.__name__.rpartition(".")[2].removeprefix("test_").replace("_", "-")
    world = World(target=target, namespace=f"e2e-{name}")
    target.run_kubectl("delete", "namespace", world.namespace, "--ignore-not-found", "--wait")
    ensure_namespace(target, world.namespace)
    world.install_operator()
    yield world
    # Not waited for: the next file has a namespace of its own.
    target.run_kubectl("delete", "namespace", world.namespace, "--wait=false")
