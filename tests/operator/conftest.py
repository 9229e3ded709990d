"""A controller with an API server and a cache of its own; tests of other parts have fixtures of their own."""

from typing import Any

import pytest

from grpo_operator.cluster.kinds import JOBS
from grpo_operator.controller import Controller
from grpo_operator.observe.cache import Cache
from grpo_operator.observe.memory import Memory

from .controlled_job import a_job, controller_of
from .fake_api_server import FakeApiServer


@pytest.fixture
def client() -> FakeApiServer:
    """Serves one new job."""
    made = FakeApiServer()
    made.put(JOBS, a_job())
    return made


@pytest.fixture
def cache(client: FakeApiServer) -> Cache:
    made = Cache()
    client.show(made)
    return made


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def controller(client: Any, cache: Cache, memory: Memory) -> Controller:
    return controller_of(client, cache, memory)
