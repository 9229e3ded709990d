"""Engines of two rollout pods on an API server in memory, where one of the two is missing."""

from datetime import timedelta

import pytest

from grpo_operator.children.names import Names
from grpo_operator.cluster import errors
from grpo_operator.cluster.kinds import JOBS, PODS
from grpo_operator.controller import Controller
from grpo_operator.observe.cache import Cache

from .controlled_job import KEY, Clock, a_job, condition_of, controller_of, pod_names, run_pods
from .fake_api_server import FakeApiServer
from .fake_cluster import UID, spec

NAMES = Names.of(job="copy", uid=UID)
FIRST, SECOND = (NAMES.rollout(replica=0, incarnation=0, node=node) for node in range(2))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def starting(client: FakeApiServer, cache: Cache, clock: Clock) -> Controller:
    """The controller of a job with one engine, whose rollout pods come at the next reconcile."""
    controller = controller_of(client, cache, clock=clock)
    engines = spec(engine={"tensorParallelSize": 2}, rollout={"replicas": 1, "nodesPerReplica": 2})
    client.put(JOBS, a_job(spec=engines.to_object()))
    client.show(cache)
    await controller.reconcile(KEY)
    run_pods(client)
    client.show(cache)
    return controller


async def test_a_pod_of_an_engine_that_is_refused_is_asked_for_again_and_the_other_stays(
    starting, client, cache, clock
):
    client.refused = {SECOND: errors.Forbidden("exceeded quota: small")}
    await starting.reconcile(KEY)
    await starting.reconcile(KEY)
    assert pod_names(client, "rollout") == [FIRST]
    assert condition_of(client, "RolloutReady")["reason"] == "QuotaExceeded"
    client.refused = {}
    clock.now += timedelta(minutes=5)
    await starting.reconcile(KEY)
    assert pod_names(client, "rollout") == [FIRST, SECOND]


async def test_a_pod_of_a_starting_engine_that_is_gone_for_good_takes_the_other_with_it(
    starting, client, cache
):
    await starting.reconcile(KEY)
    client.show(cache)
    await starting.reconcile(KEY)
    client.remove(PODS, SECOND)
    client.show(cache)
    await starting.reconcile(KEY)
    wanted = [NAMES.rollout(replica=0, incarnation=1, node=node) for node in range(2)]
    assert pod_names(client, "rollout") == wanted
