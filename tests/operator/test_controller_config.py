"""The ConfigMap of a run is the one that its job started with, or no pod is made: who may write ConfigMaps
need not be allowed to make pods."""

import json
from datetime import timedelta

import pytest

from grpo_operator.children.config import TEMPLATES_KEY, content_digest
from grpo_operator.children.names import Names
from grpo_operator.children.pod import RUN_CONFIG_KEY
from grpo_operator.cluster.kinds import CONFIG_MAPS, JOBS, PODS, KubeObject
from grpo_operator.controller import Controller
from grpo_operator.observe.cache import Cache
from grpo_operator.observe.process_state import ProcessState

from .controlled_job import condition_of, controller_of, look, pod_names, run_pods, status_of
from .fake_api_server import FakeApiServer
from .fake_cluster import IMAGE, NOW, UID

NAMES = Names.of(job="copy", uid=UID)


def replaced(client: FakeApiServer, key: str, text: str) -> KubeObject:
    """The ConfigMap of the job, deleted and made again with another text under one key."""
    [config] = client.objects(CONFIG_MAPS)
    client.remove(CONFIG_MAPS, config["metadata"]["name"])
    meta = {name: config["metadata"][name] for name in ("name", "labels", "ownerReferences")}
    return client.put(CONFIG_MAPS, {**config, "metadata": meta, "data": config["data"] | {key: text}})


def with_own_image(client: FakeApiServer) -> str:
    """The pod templates of the job with another image."""
    [config] = client.objects(CONFIG_MAPS)
    templates = json.loads(config["data"][TEMPLATES_KEY])
    for template in templates.values():
        template["spec"]["containers"][0]["image"] = "elsewhere.example/own:1"
        template["spec"]["hostNetwork"] = True
    return json.dumps(templates)


def lose_an_engine(client: FakeApiServer, cache: Cache) -> None:
    client.remove(PODS, pod_names(client, "rollout-1")[0])
    client.show(cache)


async def test_the_digest_is_in_the_status_before_the_config_map_is_there(
    controller: Controller, client: FakeApiServer
) -> None:
    digests = []
    create = client.create

    async def noted(kind, namespace, body, **more):
        if kind == CONFIG_MAPS:
            digests.append((status_of(client)["configDigest"], content_digest(body)))
        return await create(kind, namespace, body, **more)

    client.create = noted
    await look(controller)
    [(in_status, of_body)] = digests
    assert in_status == of_body == status_of(client)["configDigest"]
    assert len(of_body) == 64


@pytest.mark.parametrize("key", [TEMPLATES_KEY, "spec.json", RUN_CONFIG_KEY, "more"])
async def test_from_another_config_map_no_pod_is_made_and_those_that_run_go_on(
    running: Controller, client: FakeApiServer, cache: Cache, state: ProcessState, key: str
) -> None:
    [config] = client.objects(CONFIG_MAPS)
    text = with_own_image(client) if key == TEMPLATES_KEY else config["data"].get(key, "") + " "
    replaced(client, key, text)
    lose_an_engine(client, cache)
    before = pod_names(client)
    await look(running)
    assert pod_names(client) == before
    assert status_of(client)["phase"] == "Running"
    ready = condition_of(client, "Ready")
    assert ready["reason"] == "RevisionChanged"
    assert f"ConfigMap {NAMES.config(status_of(client)['revision'])} is not the one" in ready["message"]

    # a person does what the sentence says
    client.remove(CONFIG_MAPS, config["metadata"]["name"])
    client.show(cache)
    later = controller_of(client, cache, state, clock=lambda: NOW + timedelta(minutes=5))
    await look(later)
    [made] = client.objects(CONFIG_MAPS)
    assert status_of(client)["configDigest"] == content_digest(made)
    [engine] = [pod for pod in client.objects(PODS) if pod["metadata"]["name"].endswith("rollout-1-i1")]
    assert engine["spec"]["containers"][0]["image"] == IMAGE
    assert "hostNetwork" not in engine["spec"]


async def test_one_that_comes_before_ours_is_not_used(
    controller: Controller, client: FakeApiServer, cache: Cache, state: ProcessState
) -> None:
    """Somebody knows its name, and is there between the status and the ConfigMap."""
    create = client.create

    async def beaten(kind, namespace, body, **more):
        if kind == CONFIG_MAPS and not client.objects(CONFIG_MAPS):
            client.put(CONFIG_MAPS, {**body, "data": body["data"] | {RUN_CONFIG_KEY: "{}"}})
        return await create(kind, namespace, body, **more)

    client.create = beaten
    await look(controller, times=1)
    assert pod_names(client) == []
    await look(controller_of(client, cache, state, clock=lambda: NOW + timedelta(minutes=5)))
    assert pod_names(client) == []
    assert condition_of(client, "Ready")["reason"] == "RevisionChanged"


async def test_two_operators_make_one_config_map(
    controller: Controller, client: FakeApiServer, cache: Cache
) -> None:
    """The second writes the status before the first has made it, and would make it after."""
    create, others, bodies, made = client.create, Cache(), [], []
    second = controller_of(client, others)

    async def crossing(kind, namespace, body, **more):
        if kind != CONFIG_MAPS or len(bodies) == 2:
            return await create(kind, namespace, body, **more)
        bodies.append(body)
        if len(bodies) == 1:
            client.show(others)
            await look(second, times=1)
            return made[0]
        made.append(await create(kind, namespace, bodies[0]))
        return await create(kind, namespace, body)

    client.create = crossing
    await look(controller)
    client.show(cache)
    await look(controller)
    [config] = client.objects(CONFIG_MAPS)
    assert status_of(client)["configDigest"] == content_digest(config)
    assert condition_of(client, "Ready")["reason"] != "RevisionChanged"
    assert len(pod_names(client)) == 3


async def test_a_job_without_a_digest_takes_that_of_its_config_map_once(
    running: Controller, client: FakeApiServer, cache: Cache
) -> None:
    """As one that began when the status had none."""
    [job] = client.objects(JOBS)
    digest = job["status"].pop("configDigest")
    client.put(JOBS, job)
    client.show(cache)
    await look(running)
    assert status_of(client)["configDigest"] == digest
    replaced(client, TEMPLATES_KEY, with_own_image(client))
    client.show(cache)
    await look(running)
    assert status_of(client)["configDigest"] == digest
    assert condition_of(client, "Ready")["reason"] == "RevisionChanged"


async def test_a_trainer_that_is_lost_is_not_replaced_from_another_config_map(
    running: Controller, client: FakeApiServer, cache: Cache
) -> None:
    replaced(client, TEMPLATES_KEY, with_own_image(client))
    client.remove(PODS, NAMES.trainer(attempt=1, index=0))
    client.show(cache)
    await look(running)
    run_pods(client)
    client.show(cache)
    await look(running)
    assert pod_names(client, "trainer") == []
    assert condition_of(client, "Ready")["reason"] == "RevisionChanged"
    assert condition_of(client, "Failed")["status"] == "False"
