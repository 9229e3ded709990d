"""A controller with an API server and a cache of its own; tests of other parts have fixtures of their own."""

from typing import Any

import pytest

from grpo_operator.cluster.kinds import JOBS
from grpo_operator.controller import Controller
from grpo_operator.observe.cache import Cache
from grpo_operator.observe.process_state import ProcessState

from .controlled_job import KEY, a_job, controller_of, run_pods, status_of
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
def state() -> ProcessState:
    return ProcessState()


@pytest.fixture
def controller(client: Any, cache: Cache, state: ProcessState) -> Controller:
    return controller_of(client, cache, state)


@pytest.fixture
async def running(controller: Controller, client: FakeApiServer, cache: Cache) -> Controller:
    """The controller of a job whose pods all run."""
    await controller.reconcile(KEY)
    await controller.reconcile(KEY)  # rollout pods come once the trainer pod has a node
    run_pods(client)
    client.show(cache)
    await controller.reconcile(KEY)
    assert status_of(client)["phase"] == "Running"
    return controller
