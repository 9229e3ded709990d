"""Objects of another namespace that name a job as their owner. The API server does not check who they name,
so a user who may write in any namespace can make them, and an operator of all namespaces sees them."""

import json
from collections.abc import Sequence
from copy import deepcopy
from datetime import timedelta
from typing import Any

import pytest

from grpo_operator.cluster.kinds import (
    CONFIG_MAPS,
    JOBS,
    NETWORK_POLICIES,
    PODS,
    SERVICES,
    WATCHED,
    Kind,
    KubeObject,
)
from grpo_operator.controller import Controller
from grpo_operator.observe.cache import Cache
from grpo_operator.observe.process_state import ProcessState

from .controlled_job import condition_of, controller_of, look, pod_names, status_of
from .fake_api_server import FakeApiServer
from .fake_cluster import IMAGE, NOW, UID

JOB = ("default", UID)
KINDS = tuple(kind for kind in WATCHED if kind != JOBS)
ENDED: dict[str, Sequence[Any]] = {
    "done": ("Succeeded", 0),
    "user error": ("Failed", 40),
    "oom": ("Failed", 137),
}


def test_these_are_all_kinds_of_children() -> None:
    assert set(KINDS) == {PODS, SERVICES, CONFIG_MAPS, NETWORK_POLICIES}


def foreign(item: KubeObject, *, namespace: str = "elsewhere", name: str = "", **more: Any) -> KubeObject:
    """A copy of a child of the job in another namespace, newer than everything."""
    meta = item["metadata"] | {
        "namespace": namespace,
        "uid": f"foreign-{namespace}",
        "resourceVersion": "9000",
    }
    meta |= {"name": name or item["metadata"]["name"]}
    return {**deepcopy(item), "metadata": meta, **more}


async def writes_of(controller: Controller, client: FakeApiServer) -> int:
    """How many writes it takes to reconcile twice."""
    before = client.num_writes
    await look(controller, times=2)
    return client.num_writes - before


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
async def test_a_namesake_in_another_namespace_is_no_child(
    running: Controller, client: FakeApiServer, cache: Cache, kind: Kind
) -> None:
    before, status = cache.children(JOB, kind), status_of(client)
    assert before
    for item in before:
        # of this order, one sorts before the job's own namespace and one after it
        for namespace in ("another", "elsewhere"):
            assert cache.put(kind, foreign(item, namespace=namespace))
    assert cache.children(JOB, kind) == before
    assert len(cache.child_names(JOB)) == sum(len(cache.children(JOB, each)) for each in KINDS)
    assert await writes_of(running, client) == 0
    assert status_of(client) == status
    for item in before:
        cache.remove(
            kind, foreign(item) | {"metadata": foreign(item)["metadata"] | {"resourceVersion": "9001"}}
        )
    assert cache.children(JOB, kind) == before


@pytest.mark.parametrize(("phase", "exit_code"), ENDED.values(), ids=ENDED.keys())
async def test_a_foreign_pod_that_ends_ends_no_job(
    running: Controller, client: FakeApiServer, cache: Cache, phase: str, exit_code: int
) -> None:
    [trainer] = [pod for pod in cache.pods(JOB) if "-trainer-" in pod["metadata"]["name"]]
    state = {"terminated": {"exitCode": exit_code, "reason": "Error", "finishedAt": "2026-11-21T12:00:01Z"}}
    container = {"name": "trainer", "restartCount": 0, "state": state}
    before = status_of(client)
    cache.put(PODS, foreign(trainer, status={"phase": phase, "containerStatuses": [container]}))
    assert await writes_of(running, client) == 0
    assert status_of(client) == before


async def test_a_foreign_pod_of_an_engine_too_many_is_left_alone(
    running: Controller, client: FakeApiServer, cache: Cache
) -> None:
    engine = next(pod for pod in cache.pods(JOB) if "-rollout-0-" in pod["metadata"]["name"])
    cache.put(PODS, foreign(engine, name=engine["metadata"]["name"].replace("rollout-0", "rollout-77")))
    assert await writes_of(running, client) == 0


@pytest.mark.parametrize(
    "more", [{}, {"deletionTimestamp": "2026-11-21T12:00:05Z", "finalizers": ["keep.it/so"]}]
)
async def test_a_pod_is_made_by_the_configuration_of_its_own_namespace(
    running: Controller, client: FakeApiServer, cache: Cache, more: dict[str, Any]
) -> None:
    [config] = cache.config_maps(JOB)
    theirs = foreign(config)
    theirs["metadata"] |= more
    templates = json.loads(theirs["data"]["pods.json"])
    for template in templates.values():
        template["spec"]["containers"][0]["image"] = "elsewhere.example/own:1"
    theirs["data"]["pods.json"] = json.dumps(templates)
    cache.put(CONFIG_MAPS, theirs)
    lost = pod_names(client, "rollout-1")[0]
    client.remove(PODS, lost)
    client.show(cache)
    cache.put(CONFIG_MAPS, theirs | {"metadata": theirs["metadata"] | {"resourceVersion": "9001"}})
    await look(running, times=2)
    [made] = [pod for pod in client.objects(PODS) if pod["metadata"]["name"].endswith("-rollout-1-i1")]
    assert {container["image"] for container in made["spec"]["containers"]} == {IMAGE}


async def test_no_pod_is_made_by_a_configuration_that_is_being_deleted(
    running: Controller, client: FakeApiServer, cache: Cache, state: ProcessState
) -> None:
    """As after `kubectl delete configmap`, while a finalizer of somebody keeps it."""
    [config] = client.objects(CONFIG_MAPS)
    leaving = {"deletionTimestamp": "2026-11-21T12:00:05Z", "finalizers": ["keep.it/so"]}
    client.put(CONFIG_MAPS, {"metadata": config["metadata"] | leaving})
    lost = pod_names(client, "rollout-1")[0]
    client.remove(PODS, lost)
    client.show(cache)
    await look(running, times=2)
    assert [name for name in pod_names(client) if "rollout-1" in name] == []
    assert len(pod_names(client)) == 2
    told = condition_of(client, "RolloutReady")
    assert told["reason"] == "NameTaken"
    assert (
        f"ConfigMap {config['metadata']['name']} is being deleted, which its finalizers keep (keep.it/so)"
        in (told["message"])
    )

    client.remove(CONFIG_MAPS, config["metadata"]["name"])
    client.show(cache)
    # the next try of what was refused is due by then
    await look(controller_of(client, cache, state, clock=lambda: NOW + timedelta(minutes=5)), times=2)
    assert [item["metadata"]["name"] for item in client.objects(CONFIG_MAPS)] == [config["metadata"]["name"]]
    assert len([name for name in pod_names(client) if "rollout-1" in name]) == 1
