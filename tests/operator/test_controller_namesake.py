"""A job is deleted and made anew under its name while children of the old one still exist."""

import pytest

from grpo_api.v1alpha1.job import API_VERSION, KIND
from grpo_operator.children.names import Names
from grpo_operator.cluster import errors
from grpo_operator.cluster.kinds import CONFIG_MAPS, JOBS, PODS, SECRETS, SERVICES, KubeObject
from grpo_operator.controller import Controller
from grpo_operator.observe.cache import Cache, owner_uid

from .controlled_job import KEY, a_job, condition_of, controller_of, look, run_pods, status_of
from .fake_api_server import FakeApiServer
from .fake_cluster import UID

NEW_UID = UID[::-1]
OLD, NEW = Names.of(job="copy", uid=UID), Names.of(job="copy", uid=NEW_UID)
CHILDREN = (PODS, SERVICES, CONFIG_MAPS, SECRETS)


def children(client: FakeApiServer, uid: str) -> list[KubeObject]:
    return [item for kind in CHILDREN for item in client.objects(kind) if owner_uid(item) == uid]


def make_anew(client: FakeApiServer, cache: Cache) -> None:
    """The operator hears of both before it looks again. The garbage collector takes its time."""
    (old,) = client.objects(JOBS)
    client.is_collecting_garbage = False
    client.remove(JOBS, "copy")
    cache.remove(JOBS, old)
    namesake = a_job()
    namesake["metadata"]["uid"] = NEW_UID
    cache.put(JOBS, client.put(JOBS, namesake))


@pytest.fixture
async def running(controller: Controller, client: FakeApiServer, cache: Cache) -> Controller:
    await look(controller)
    run_pods(client)
    client.show(cache)
    await look(controller)
    return controller


async def test_it_starts_with_children_of_its_own_and_leaves_those_of_the_other_alone(running, client, cache):
    old = children(client, UID)
    make_anew(client, cache)
    await look(running)
    assert children(client, UID) == old
    trainers = [p["metadata"]["name"] for p in client.objects(PODS) if owner_uid(p) == NEW_UID]
    assert NEW.trainer(attempt=1, index=0) in trainers and len(trainers) == 3
    assert (status_of(client)["attempt"], status_of(client)["phase"]) == (1, "Starting")
    for pod in client.objects(PODS):  # the old ones end, and the collector takes them
        if owner_uid(pod) == UID:
            cache.remove(PODS, pod)
            client.remove(PODS, pod["metadata"]["name"])
    await look(running)
    assert status_of(client)["attempt"] == 1


async def test_what_the_other_was_refused_is_not_said_about_it(running, client, cache):
    client.remove(PODS, OLD.rollout(replica=0, incarnation=0))
    client.show(cache)
    client.refused = {PODS.name: errors.Forbidden("exceeded quota: small")}
    await look(running)
    assert condition_of(client, "RolloutReady")["reason"] == "QuotaExceeded"
    make_anew(client, cache)
    client.refused = {}
    await running.reconcile(KEY)
    assert condition_of(client, "Running")["reason"] == "CreatingPods"
    made = [p["metadata"]["name"] for p in client.objects(PODS) if owner_uid(p) == NEW_UID]
    assert made == [NEW.trainer(attempt=1, index=0)]


async def test_an_object_of_the_other_with_a_name_that_it_needs_is_not_taken_over(client, cache):
    name = NEW.trainer(attempt=1, index=0)
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": "copy", "uid": UID, "controller": True}
    theirs = client.put(
        PODS, {"metadata": {"name": name, "ownerReferences": [owner]}, "spec": {"containers": []}}
    )
    make_anew(client, cache)
    await look(controller_of(client, cache))
    assert condition_of(client, "Running")["reason"] == "NameTaken"
    assert [pod for pod in client.objects(PODS) if pod["metadata"]["name"] == name] == [theirs]


async def test_a_pod_that_is_gone_is_not_looked_for_among_those_of_the_other(running, client, cache):
    make_anew(client, cache)
    await look(running)
    run_pods(client)
    client.show(cache)
    await look(running)
    client.remove(PODS, NEW.trainer(attempt=1, index=0))
    client.show(cache)
    await look(running)
    assert status_of(client)["attempt"] == 2
    assert OLD.trainer(attempt=1, index=0) in [p["metadata"]["name"] for p in client.objects(PODS)]
