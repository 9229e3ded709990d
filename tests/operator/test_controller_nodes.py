"""Engines of two rollout pods on an API server in memory, where one of the two is missing."""

from contextlib import suppress
from datetime import timedelta

import pytest

from grpo_operator.children.config import SPEC_KEY
from grpo_operator.children.names import Names
from grpo_operator.cluster import errors
from grpo_operator.cluster.kinds import CONFIG_MAPS, JOBS, PODS
from grpo_operator.controller import Controller
from grpo_operator.observe.cache import Cache
from grpo_operator.observe.from_cache import job_and_pods

from .controlled_job import KEY, Clock, a_job, condition_of, controller_of, pod_names, run_pods
from .fake_api_server import FakeApiServer
from .fake_cluster import UID, spec

NAMES = Names.of(job="copy", uid=UID)
FIRST, SECOND = (NAMES.rollout(replica=0, incarnation=0, node=node) for node in range(2))
REPLACED = [NAMES.rollout(replica=0, incarnation=1, node=node) for node in range(2)]


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


async def reconcile_until_written(
    controller: Controller, client: FakeApiServer, *, num_failures: int
) -> None:
    """Reconcile so many times while pods cannot be written, and once more when they can."""
    client.refused = {PODS.name: errors.Transient("away")}
    for _ in range(num_failures):
        with suppress(errors.Transient):
            await controller.reconcile(KEY)
    client.refused = {}
    await controller.reconcile(KEY)


@pytest.mark.parametrize("num_failures", [0, 1, 3])
@pytest.mark.parametrize("lost", [FIRST, SECOND])
async def test_a_pod_of_a_starting_engine_that_is_gone_takes_the_other_with_it_however_often_the_writes_fail(
    starting, client, cache, lost, num_failures
):
    await starting.reconcile(KEY)
    client.show(cache)
    await starting.reconcile(KEY)
    client.remove(PODS, lost)
    client.show(cache)
    await reconcile_until_written(starting, client, num_failures=num_failures)
    assert pod_names(client, "rollout") == REPLACED


@pytest.mark.parametrize("num_failures", [0, 3])
@pytest.mark.parametrize("lost", [FIRST, SECOND])
async def test_an_operator_that_starts_anew_replaces_an_engine_that_lacks_a_pod(
    starting, client, cache, lost, num_failures
):
    await starting.reconcile(KEY)
    client.remove(PODS, lost)
    fresh = Cache()
    client.show(fresh)
    anew = controller_of(client, fresh)
    await reconcile_until_written(anew, client, num_failures=num_failures)
    assert pod_names(client, "rollout") == REPLACED


async def test_an_operator_that_starts_anew_finds_a_pod_of_an_engine_that_its_list_misses(starting, client):
    await starting.reconcile(KEY)
    client.unlabel(PODS, SECOND)
    fresh = Cache()
    client.show(fresh)
    await controller_of(client, fresh).reconcile(KEY)
    assert pod_names(client, "rollout") == [FIRST, SECOND]


@pytest.mark.parametrize("is_stored_readable", [True, False])
async def test_the_pods_of_an_engine_stay_one_where_the_spec_cannot_be_read(
    starting, client, cache, is_stored_readable
):
    await starting.reconcile(KEY)
    client.show(cache)
    (job,) = client.objects(JOBS)
    client.put(JOBS, job | {"spec": {**job["spec"], "ofAnotherRelease": {"field": 1}}})
    if not is_stored_readable:
        for config in client.objects(CONFIG_MAPS):
            if SPEC_KEY in config["data"]:
                client.put(CONFIG_MAPS, config | {"data": {**config["data"], SPEC_KEY: "{}"}})
    client.show(cache)
    await starting.reconcile(KEY)
    await starting.reconcile(KEY)
    assert pod_names(client, "rollout") == [FIRST, SECOND]
    found = job_and_pods(cache, KEY)
    assert found is not None
    assert found.job.spec is None
    (engine,) = found.rollouts
    assert (engine.is_whole, len(engine.pods)) == (True, 2)
