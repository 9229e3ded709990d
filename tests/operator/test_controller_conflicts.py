"""Writes that meet somebody else: another operator, another job, a cache that lags behind."""

import pytest

from grpo_operator.children.names import Names
from grpo_operator.cluster import errors
from grpo_operator.cluster.kinds import JOBS, PODS, SERVICES, KubeObject
from grpo_operator.observe.cache import Cache
from grpo_operator.observe.process_state import ProcessState

from .controlled_job import (
    KEY,
    a_job,
    condition_of,
    controller_of,
    pod_names,
    run_pods,
    status_of,
)
from .fake_api_server import FakeApiServer
from .fake_cluster import NOW, UID, report, spec

NAMES = Names.of(job="copy", uid=UID)
FIRST_TRAINER = NAMES.trainer(attempt=1, index=0)
ANOTHER_UID = UID[::-1]


async def test_a_status_that_was_written_since_the_job_was_read_is_not_overwritten(running, client, cache):
    theirs = status_of(client) | {"attempt": 2, "restarts": 1, "phase": "Restarting"}
    client.put(JOBS, a_job(status=theirs))  # another operator, and our cache lags behind
    client.remove(PODS, NAMES.rollout(replica=1, incarnation=0))
    cache.remove(
        PODS, next(p for p in cache.pods(("default", UID)) if "-rollout-1-" in p["metadata"]["name"])
    )
    before = client.num_writes
    assert await running.reconcile(KEY) == 0.0  # looks again at once
    assert status_of(client) == theirs
    assert client.num_writes == before
    assert cache.job(KEY)["status"] == theirs


async def test_conflicts_in_a_row_are_spaced_out_until_a_write_succeeds(client, cache):
    client.put(JOBS, a_job())
    client.show(cache)
    state = ProcessState()
    controller = controller_of(client, cache, state)
    client.refused["GRPOJob"] = errors.Conflict("the object has been modified")
    waits = [await controller.reconcile(KEY) for _ in range(12)]
    assert waits[:4] == [0.0, 0.2, 0.4, 0.8] and waits[-1] == 60.0
    del client.refused["GRPOJob"]
    await controller.reconcile(KEY)
    client.refused["GRPOJob"] = errors.Conflict("the object has been modified")
    cache.job(KEY)
    state.remember_progress(KEY, report(), now=NOW)
    assert await controller.reconcile(KEY) == 0.0


async def test_a_store_that_was_restored_ends_the_process(running, client, cache):
    shown = client.objects(JOBS)[0]
    later = shown | {"metadata": shown["metadata"] | {"resourceVersion": "999999"}}
    cache.put(JOBS, later)  # what the cluster was before the restore
    client.remove(PODS, NAMES.rollout(replica=1, incarnation=0))
    cache.remove(
        PODS, next(p for p in cache.pods(("default", UID)) if "-rollout-1-" in p["metadata"]["name"])
    )
    with pytest.raises(errors.VersionsWentBack, match="restored from a backup"):
        await running.reconcile(KEY)


async def test_a_job_that_is_gone_before_its_status_is_written_gets_no_children(controller, client):
    client.remove(JOBS, "copy")
    assert await controller.reconcile(KEY) is None
    assert pod_names(client) == []


async def test_a_namesake_made_after_the_job_was_read_gets_nothing_that_was_meant_for_it(controller, client):
    client.remove(JOBS, "copy")
    namesake = a_job()
    namesake["metadata"]["uid"] = ANOTHER_UID
    client.put(JOBS, namesake)
    await controller.reconcile(KEY)
    (job,) = client.objects(JOBS)
    assert (job["metadata"]["uid"], job.get("status"), pod_names(client)) == (ANOTHER_UID, None, [])


async def test_a_job_that_is_deleted_is_left_to_the_garbage_collector(running, client, cache):
    client.put(JOBS, {"metadata": {"name": "copy", "deletionTimestamp": "2026-11-21T12:00:00Z"}})
    client.remove(PODS, FIRST_TRAINER)
    client.show(cache)
    before = client.num_writes
    assert await running.reconcile(KEY) is None
    assert client.num_writes == before
    client.remove(JOBS, "copy")
    assert client.objects(PODS) == ()


async def test_a_trainer_pod_that_only_the_cache_misses_is_not_taken_for_lost(running, client, cache):
    client.show(cache, but=FIRST_TRAINER)
    await running.reconcile(KEY)
    assert (status_of(client)["attempt"], status_of(client)["phase"]) == (1, "Running")
    assert FIRST_TRAINER in [pod["metadata"]["name"] for pod in cache.pods(("default", UID))]


async def test_a_trainer_pod_that_the_watch_shows_while_the_api_server_is_asked_is_not_taken_for_lost(
    running, client, cache
):
    client.show(cache, but=FIRST_TRAINER)
    client.before_answer = cache.put  # the watch event with the same state of the pod comes first
    await running.reconcile(KEY)
    assert (status_of(client)["attempt"], status_of(client)["phase"]) == (1, "Running")


async def test_a_trainer_pod_that_the_api_server_misses_too_is_lost(running, client, cache):
    client.remove(PODS, FIRST_TRAINER)
    client.show(cache)
    await running.reconcile(KEY)
    assert (status_of(client)["attempt"], status_of(client)["disruptions"]) == (2, 1)
    assert status_of(client)["lastFailure"]["pod"] == FIRST_TRAINER


async def test_an_attempt_begins_although_the_watch_never_shows_the_end_of_a_pod_that_was_deleted(
    controller, client, cache
):
    two_nodes = spec(trainer={"numNodes": 2}).to_object()
    client.put(JOBS, a_job(spec=two_nodes))
    client.show(cache)
    await controller.reconcile(KEY)
    run_pods(client)
    client.show(cache)
    await controller.reconcile(KEY)
    client.put(PODS, {"metadata": {"name": FIRST_TRAINER}, "spec": {}})  # without a node it goes at once
    client.remove(PODS, NAMES.trainer(attempt=1, index=1))
    client.show(cache)
    while await controller.reconcile(KEY) == 0.0:
        pass
    assert status_of(client)["attempt"] == 2
    assert pod_names(client, "trainer") == [NAMES.trainer(attempt=2, index=index) for index in (0, 1)]


def owned_by(uid: str, item: KubeObject) -> KubeObject:
    owner = {"apiVersion": "grpo.dev/v1alpha1", "kind": "GRPOJob", "name": "copy", "uid": uid}
    return item | {"metadata": item["metadata"] | {"ownerReferences": [owner | {"controller": True}]}}


@pytest.mark.parametrize("owner", ["", ANOTHER_UID], ids=["nobody's", "another job's"])
async def test_a_service_of_somebody_else_with_the_name_of_ours_is_said_and_left_alone(
    controller, client: FakeApiServer, owner: str
):
    theirs: KubeObject = {"metadata": {"name": NAMES.service("rollout")}, "spec": {"ports": [{"port": 80}]}}
    if owner:
        another = a_job()
        another["metadata"] |= {"name": "another", "uid": owner}
        client.put(JOBS, another)
    stored = client.put(SERVICES, owned_by(owner, theirs) if owner else theirs)
    await controller.reconcile(KEY)
    await controller.reconcile(KEY)
    running = next(
        c
        for job in client.objects(JOBS)
        for c in job.get("status", {}).get("conditions", ())
        if c["type"] == "Running"
    )
    assert running["reason"] == "NameTaken" and NAMES.service("rollout") in running["message"]
    assert [s for s in client.objects(SERVICES) if s["metadata"]["name"] == NAMES.service("rollout")] == [
        stored
    ]
    assert pod_names(client) == []


async def test_what_another_operator_made_for_the_same_job_is_taken_over(controller, client, cache):
    await controller.reconcile(KEY)
    made = {kind: client.objects(kind) for kind in (PODS, SERVICES)}
    late = Cache()
    job = client.put(JOBS, a_job(status={}))
    late.put(JOBS, job)
    second = controller_of(client, late)
    await second.reconcile(KEY)
    assert {kind: client.objects(kind) for kind in made} == made
    assert sorted(pod["metadata"]["name"] for pod in late.pods(("default", UID))) == pod_names(client)


async def test_an_operator_that_starts_anew_finds_every_child_and_has_nothing_to_do(running, client, cache):
    before = client.num_writes
    fresh = Cache()
    client.show(fresh)
    await controller_of(client, fresh).reconcile(KEY)
    assert client.num_writes == before
    assert condition_of(client, "Running")["status"] == "True"


async def test_that_a_namesake_is_of_another_release_is_not_said_on_it_for_the_job_before(
    controller, client, cache
):
    client.put(JOBS, a_job(status={"attempt": 1, "somethingNew": 1}))
    client.show(cache)
    client.remove(JOBS, "copy")
    namesake = a_job()
    namesake["metadata"]["uid"] = ANOTHER_UID
    stored = client.put(JOBS, namesake)
    await controller.reconcile(KEY)
    assert client.objects(JOBS) == (stored,)
