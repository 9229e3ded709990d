"""A label is taken away from a child: lists and the watch no longer show it, and that is no deletion."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from grpo_api.contract.labels import JOB_UID, MANAGED_BY, OPERATOR
from grpo_operator.children.names import Names
from grpo_operator.cluster import errors
from grpo_operator.cluster.kinds import CONFIG_MAPS, JOBS, NETWORK_POLICIES, PODS, SERVICES, Kind
from grpo_operator.controller import Controller
from grpo_operator.observe.cache import Cache

from .controlled_job import KEY, a_job, condition_of, controller_of, look, pod_names, run_pods, status_of
from .fake_api_server import FakeApiServer
from .fake_cluster import NOW, UID, spec

NAMES = Names.of(job="copy", uid=UID)
TRAINERS = [NAMES.trainer(attempt=1, index=index) for index in range(2)]
ROLLOUTS = [NAMES.rollout(replica=replica, incarnation=0) for replica in range(2)]

Unlabel = Callable[[Kind, str], None]


@pytest.fixture
async def running(client: FakeApiServer, cache: Cache) -> Controller:
    """The controller of a job with two trainer and two rollout pods that all run."""
    client.put(JOBS, a_job(spec=spec(trainer={"numNodes": 2}).to_object()))
    client.show(cache)
    controller = controller_of(client, cache)
    await look(controller)
    run_pods(client)
    client.show(cache)
    await look(controller)
    assert status_of(client)["phase"] == "Running"
    return controller


@pytest.fixture(params=["watch", "resync"])
def unlabel(request: pytest.FixtureRequest, client: FakeApiServer, cache: Cache) -> Unlabel:
    """Takes the labels of an object away, as the operator learns of it."""

    def by_watch(kind: Kind, name: str) -> None:
        cache.remove(kind, client.unlabel(kind, name))  # as the event DELETED of a watch with a selector

    def by_resync(kind: Kind, name: str) -> None:
        client.unlabel(kind, name)
        client.show(cache)

    return by_watch if request.param == "watch" else by_resync


@pytest.mark.parametrize("name", [*TRAINERS, *ROLLOUTS])
async def test_a_pod_without_its_labels_is_neither_lost_nor_made_twice(running, client, cache, unlabel, name):
    before = pod_names(client)
    unlabel(PODS, name)
    await look(running)
    client.show(cache)  # every later list misses it too
    await look(running)
    assert pod_names(client) == before
    status = status_of(client)
    assert (status["attempt"], status["phase"], status["rollout"]["replicas"]) == (1, "Running", 2)
    assert status.get("lastFailure") is None


async def test_the_end_of_a_pod_without_its_labels_is_seen_with_the_next_list(running, client, cache):
    cache.remove(PODS, client.unlabel(PODS, TRAINERS[0]))
    await look(running)
    ended = {"name": "trainer", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    client.put(
        PODS,
        {"metadata": {"name": TRAINERS[0]}, "status": {"phase": "Failed", "containerStatuses": [ended]}},
    )
    client.show(cache)
    await look(running)
    assert (status_of(client)["attempt"], status_of(client)["lastFailure"]["reason"]) == (2, "OOMKilled")


async def test_no_attempt_starts_beside_a_pod_of_the_one_before_that_lost_its_labels(
    running, client, cache, unlabel
):
    unlabel(PODS, TRAINERS[1])
    await look(running)
    client.remove(PODS, TRAINERS[0])
    client.show(cache)
    await look(running)
    assert status_of(client)["attempt"] == 2
    client.show(cache)
    await look(running)
    assert pod_names(client, "trainer") == []  # the second is being deleted, and its node has to end it
    assert TRAINERS[1] in condition_of(client, "Running")["message"]
    client.remove(PODS, TRAINERS[1])
    client.show(cache)
    await look(running)
    assert pod_names(client, "trainer") == [NAMES.trainer(attempt=2, index=index) for index in range(2)]


async def test_an_operator_that_starts_anew_finds_a_pod_of_the_attempt_before_without_labels(
    running, client, cache
):
    client.put(JOBS, {"metadata": {"name": "copy"}, "status": status_of(client) | restarting()})
    client.remove(PODS, TRAINERS[0])
    client.unlabel(PODS, TRAINERS[1])
    fresh = Cache()
    client.show(fresh)
    await look(controller_of(client, fresh))
    assert pod_names(client, "trainer") == []
    assert TRAINERS[1] in condition_of(client, "Running")["message"]


def restarting() -> dict[str, object]:
    return {"attempt": 2, "phase": "Restarting"}


@pytest.mark.parametrize("name", [TRAINERS[0], ROLLOUTS[0]])
async def test_an_operator_that_starts_anew_finds_a_pod_without_labels(running, client, name):
    before = pod_names(client)
    client.unlabel(PODS, name)
    fresh = Cache()
    client.show(fresh)
    await look(controller_of(client, fresh))
    assert (pod_names(client), status_of(client)["attempt"]) == (before, 1)


async def test_a_finished_job_gives_back_an_engine_that_lost_its_labels(running, client, cache, unlabel):
    unlabel(PODS, ROLLOUTS[1])
    await look(running)
    done = {"name": "trainer", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    for name in TRAINERS:
        client.put(
            PODS, {"metadata": {"name": name}, "status": {"phase": "Succeeded", "containerStatuses": [done]}}
        )
    client.show(cache)
    await look(running)
    assert (status_of(client)["phase"], pod_names(client, "rollout")) == ("Succeeded", [])


async def test_pods_that_are_gone_are_replaced_and_asked_for_once(running, client, cache):
    client.remove(PODS, ROLLOUTS[0])
    client.show(cache)
    await look(running)
    assert pod_names(client, "rollout") == [NAMES.rollout(replica=0, incarnation=1), ROLLOUTS[1]]
    asked: list[str] = []
    answer = client.get

    async def get(kind, namespace, name):
        asked.append(name)
        return await answer(kind, namespace, name)

    client.get = get
    await look(running)
    assert asked == []


async def test_a_pod_that_is_deleted_while_the_api_server_answers_is_gone(running, client, cache):
    def delete(kind, item):
        cache.remove(PODS, {**item, "metadata": {**item["metadata"], "resourceVersion": "9999"}})

    client.before_answer = delete
    client.show(cache, but=TRAINERS[0])
    await running.reconcile(KEY)
    assert status_of(client)["attempt"] == 2


@pytest.mark.parametrize("kind", [SERVICES, NETWORK_POLICIES])
async def test_labels_that_the_operator_may_write_are_put_back(running, client, cache, unlabel, kind):
    before = client.objects(kind)
    unlabel(kind, before[0]["metadata"]["name"])
    await look(running)
    found = client.objects(kind)
    assert [item["metadata"]["uid"] for item in found] == [item["metadata"]["uid"] for item in before]
    for item in found:
        wanted = {MANAGED_BY: OPERATOR, JOB_UID: UID}
        assert wanted.items() <= item["metadata"]["labels"].items()
    num_writes = client.num_writes
    await look(running)
    assert (client.num_writes, status_of(client)["attempt"]) == (num_writes, 1)


def change_spec(client: FakeApiServer, cache: Cache) -> None:
    """As only a CRD without rules lets it happen."""
    changed = spec(trainer={"numNodes": 2}, algorithm={"steps": 99}).to_object()
    client.put(JOBS, {"metadata": {"name": "copy", "generation": 2}, "spec": changed})
    cache.put(JOBS, client.objects(JOBS)[0])


async def test_the_stored_spec_is_found_in_a_config_map_without_labels(running, client, cache, unlabel):
    (config,) = client.objects(CONFIG_MAPS)
    change_spec(client, cache)
    unlabel(CONFIG_MAPS, config["metadata"]["name"])
    await look(running)
    assert condition_of(client, "Ready")["reason"] != "RevisionLost"
    client.remove(PODS, TRAINERS[0])
    client.show(cache)
    await look(running)
    assert status_of(client)["attempt"] == 2  # the job is led on from what was snapshot
    assert len(client.objects(CONFIG_MAPS)) == 1


async def test_a_stored_spec_that_only_the_cache_misses_is_not_lost(running, client, cache):
    (config,) = client.objects(CONFIG_MAPS)
    change_spec(client, cache)
    late = Cache()
    client.show(late, but=config["metadata"]["name"])
    await look(controller_of(client, late))  # an operator that has just started
    assert condition_of(client, "Ready")["reason"] == "TrainerStarting"
    client.before_answer = late.put  # the watch event with the same state comes first
    client.show(late, but=config["metadata"]["name"])
    await look(controller_of(client, late))
    assert condition_of(client, "Ready")["reason"] == "TrainerStarting"


async def test_a_stored_spec_that_the_api_server_misses_too_is_lost_and_ends_nothing(running, client, cache):
    (config,) = client.objects(CONFIG_MAPS)
    before = pod_names(client)
    change_spec(client, cache)
    client.remove(CONFIG_MAPS, config["metadata"]["name"])
    client.show(cache)
    await look(running)
    ready = condition_of(client, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "RevisionLost")
    assert (pod_names(client), condition_of(client, "Finished")["status"]) == (before, "False")
    client.put(CONFIG_MAPS, config)  # a person restores it
    client.show(cache)
    await look(running)
    assert condition_of(client, "Ready")["reason"] == "TrainerStarting"


async def test_a_lost_stored_spec_that_is_restored_without_labels_is_found_and_asked_for_once_a_minute(
    client, cache
):
    now = NOW
    controller = controller_of(client, cache, clock=lambda: now)
    await look(controller)
    (config,) = client.objects(CONFIG_MAPS)
    change_spec(client, cache)
    client.remove(CONFIG_MAPS, config["metadata"]["name"])
    client.show(cache)
    await look(controller)
    assert condition_of(client, "Ready")["reason"] == "RevisionLost"
    asked, answer = [], client.get

    async def get(kind, namespace, name):
        asked.append(name)
        return await answer(kind, namespace, name)

    client.get = get
    for seconds in range(0, 180, 10):
        now = NOW + timedelta(seconds=seconds)
        client.show(cache)
        await look(controller)
    assert asked == [config["metadata"]["name"]] * 2
    client.put(CONFIG_MAPS, config)
    client.unlabel(CONFIG_MAPS, config["metadata"]["name"])
    client.show(cache)
    now += timedelta(seconds=60)
    await look(controller)
    assert condition_of(client, "Ready")["reason"] != "RevisionLost"


async def test_what_is_gone_from_a_job_that_is_not_lost_is_asked_for_once(client, cache):
    now = NOW
    controller = controller_of(client, cache, clock=lambda: now)
    await look(controller)
    client.remove(CONFIG_MAPS, client.objects(CONFIG_MAPS)[0]["metadata"]["name"])
    client.refused["ConfigMap"] = errors.Forbidden("no")
    asked, answer = [], client.get

    async def get(kind, namespace, name):
        asked.append(kind)
        return await answer(kind, namespace, name)

    client.get = get
    for minutes in range(10):
        now = NOW + timedelta(minutes=minutes)
        client.show(cache)
        await look(controller)
    assert asked == [CONFIG_MAPS]
