"""One reconcile of one job, on an API server in state."""

from base64 import b64decode
from datetime import timedelta

import pytest

from grpo_operator.children.names import Names
from grpo_operator.cluster import errors
from grpo_operator.cluster.kinds import CONFIG_MAPS, EVENTS, JOBS, PODS, SECRETS, Kind, KubeObject
from grpo_operator.controller import Controller
from grpo_operator.observe.cache import Cache
from grpo_operator.observe.from_cache import job_and_pods
from grpo_operator.observe.process_state import ProcessState

from .controlled_job import KEY, a_job, condition_of, controller_of, pod_names, status_of
from .fake_api_server import FakeApiServer
from .fake_cluster import NOW, UID, spec


async def settle(controller: Controller) -> None:
    """Trainer pods, then rollout pods, then the status that says so."""
    for _ in range(3):
        await controller.reconcile(KEY)


async def test_a_new_job_is_reconciled_once_and_then_left_alone(controller, client, cache):
    await settle(controller)
    assert len(cache.pods(("default", UID))) == 3
    num_writes = client.num_writes
    deadline = spec().startup_deadline_seconds
    assert await controller.reconcile(KEY) == deadline  # nothing but the deadline is waited for
    assert client.num_writes == num_writes


async def test_pods_that_were_made_are_looked_at_though_nothing_says_that_they_changed(controller, client):
    assert await controller.reconcile(KEY) == 0.5
    assert condition_of(client, "Running")["reason"] == "CreatingPods"
    await controller.reconcile(KEY)  # no scheduler has touched them, and no event has come
    assert condition_of(client, "Running")["reason"] == "PodsStarting"


async def test_a_transient_error_with_one_pod_does_not_hide_why_another_is_refused(controller, client):
    client.refused = {PODS.name: errors.Transient("away")}
    with pytest.raises(errors.Transient):
        await controller.reconcile(KEY)
    prefix = Names.of(job="copy", uid=UID)
    first, last = prefix.rollout(replica=0, incarnation=0), prefix.trainer(attempt=1, index=0)
    client.refused = {first: errors.Transient("busy"), last: errors.Forbidden("exceeded quota: small")}
    await controller.reconcile(KEY)
    await controller.reconcile(KEY)
    running = condition_of(client, "Running")
    assert running["reason"] == "QuotaExceeded" and last in running["message"]


async def test_no_pod_is_tried_while_what_all_of_them_share_is_refused(controller, client):
    client.refused = {CONFIG_MAPS.name: errors.Forbidden("exceeded quota: small")}
    await controller.reconcile(KEY)
    await controller.reconcile(KEY)
    assert condition_of(client, "Running")["reason"] == "QuotaExceeded"
    assert client.objects(PODS) == ()


async def test_a_server_that_is_away_is_left_to_the_queue_to_try_again(controller, client):
    client.refused = {PODS.name: errors.Transient("away")}
    with pytest.raises(errors.Transient):
        await controller.reconcile(KEY)


async def test_a_lost_secret_is_in_the_status_and_not_made_again_under_running_pods(
    controller, client, cache
):
    await settle(controller)
    (secret,) = client.objects(SECRETS)
    client.remove(SECRETS, secret["metadata"]["name"])  # somebody deletes it
    client.remove(PODS, pod_names(client, "rollout-1")[0])
    client.show(cache)
    await controller.reconcile(KEY)
    await controller.reconcile(KEY)
    ready = condition_of(client, "RolloutReady")
    assert ready["reason"] == "TokensLost"
    assert "delete all its pods" in ready["message"]
    assert (client.objects(SECRETS), len(pod_names(client))) == ((), 2)


class Asked(FakeApiServer):
    """Counts how often it is asked whether the Secret is there."""

    num_dry_runs = 0

    async def create(
        self, kind: Kind, namespace: str, body: KubeObject, *, is_dry_run: bool = False
    ) -> KubeObject:
        self.num_dry_runs += is_dry_run
        return await super().create(kind, namespace, body, is_dry_run=is_dry_run)


@pytest.mark.parametrize(
    ("seconds", "is_restarted", "num_asked"), [(1, False, 0), (11, False, 1), (1, True, 1)]
)
async def test_the_secret_is_not_asked_for_in_the_seconds_after_it_was_made(
    seconds: int, is_restarted: bool, num_asked: int
):
    client, cache, state, now = Asked(), Cache(), ProcessState(), NOW
    client.put(JOBS, a_job())
    client.show(cache)
    await controller_of(client, cache, state, clock=lambda: now).reconcile(KEY)
    now += timedelta(seconds=seconds)
    state = ProcessState() if is_restarted else state
    await controller_of(client, cache, state, clock=lambda: now).reconcile(KEY)
    assert (len(pod_names(client, "rollout")), client.num_dry_runs) == (2, num_asked)
    client.remove(PODS, pod_names(client, "rollout-1")[0])
    client.show(cache)
    await controller_of(client, cache, state, clock=lambda: now).reconcile(KEY)
    assert (len(pod_names(client, "rollout")), client.num_dry_runs) == (2, num_asked + 1)


async def test_a_secret_that_was_refused_has_not_been_made(client, cache, state):
    client.refused = {SECRETS.name: errors.Forbidden("exceeded quota: small")}
    for _ in range(2):
        await controller_of(client, cache, state).reconcile(KEY)
    found = job_and_pods(cache, KEY)
    assert found is not None and state.remember_pods(KEY, found, now=NOW).tokens_made_at is None


async def test_two_different_tokens_are_made_for_each_job(controller, client):
    await controller.reconcile(KEY)
    (secret,) = client.objects(SECRETS)
    assert sorted(secret["data"]) == ["admin-token", "data-token"]
    values = [b64decode(value).decode() for value in secret["data"].values()]
    assert len({*values, ""}) == 3


async def test_a_right_that_is_missing_is_not_taken_for_a_lost_secret(controller, client, cache):
    await settle(controller)
    client.remove(PODS, pod_names(client, "rollout-1")[0])
    client.show(cache)
    client.refused = {SECRETS.name: errors.Forbidden("exceeded quota: small")}
    await controller.reconcile(KEY)
    assert len(pod_names(client, "rollout")) == 2


def reasons_of_events(client: FakeApiServer) -> list[str]:
    return [event["reason"] for event in client.objects(EVENTS)]


async def test_an_event_is_written_once_after_the_status_says_it(controller, client):
    await controller.reconcile(KEY)
    await controller.reconcile(KEY)
    assert reasons_of_events(client) == ["ModeChosen"]


async def test_no_event_is_written_that_the_status_does_not_say(controller, client):
    client.refused = {JOBS.name: errors.Conflict("the uid is another")}
    await controller.reconcile(KEY)
    assert reasons_of_events(client) == []


@pytest.mark.parametrize(
    "error", [errors.Forbidden("no right to events"), errors.Transient("away"), errors.AlreadyExists("taken")]
)
async def test_an_event_that_cannot_be_written_disturbs_nothing(controller, client, error):
    client.refused = {EVENTS.name: error}
    await settle(controller)
    assert len(pod_names(client)) == 3


async def test_a_job_whose_status_another_release_wrote_says_so_once_and_is_left_alone(
    controller, client, cache
):
    newer = {"attempt": 1, "somethingNew": 1}
    client.schema_of_jobs["properties"]["status"]["properties"]["somethingNew"] = {"type": "integer"}
    client.put(JOBS, a_job(status=newer))
    client.show(cache)
    assert await controller.reconcile(KEY) is None
    (said,) = status_of(client)["conditions"]
    assert (said["type"], said["status"], said["reason"]) == ("Ready", "False", "SchemaSkew")
    assert "somethingNew" in said["message"] and "another release" in said["message"]
    assert (status_of(client), pod_names(client)) == ({**newer, "conditions": [said]}, [])
    num_writes = client.num_writes
    await controller.reconcile(KEY)
    assert client.num_writes == num_writes
