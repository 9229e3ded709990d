"""One look at one job, on a fake API server that answers what it is told."""

from typing import Any

import pytest

from grpo_operator import errors
from grpo_operator.cache import Cache
from grpo_operator.client import Client
from grpo_operator.controller import Controller
from grpo_operator.kinds import EVENTS, JOBS, PODS, SECRETS, Kind, Manifest
from grpo_operator.memory import Memory

from .fake_world import IMAGE, NOW, UID, spec

KEY = ("default", "copy")


class FakeClient(Client):
    """Accepts every write but those of a kind or a name in `refused`; objects get versions as they come."""

    def __init__(self) -> None:
        self.refused: dict[str, errors.KubernetesError] = {}
        self.num_writes = 0
        self.has_secret = False
        self.events: list[Manifest] = []
        self.managers: list[str] = []

    async def create(
        self, kind: Kind, namespace: str, body: Manifest, *, is_dry_run: bool = False
    ) -> Manifest:
        if kind == EVENTS:
            if EVENTS.name in self.refused:
                raise self.refused[EVENTS.name]
            self.events.append(body)
            return body
        if kind == SECRETS:
            if self.has_secret:
                raise errors.AlreadyExists("secrets already exists")
            accepted = self._accept(kind, body)
            self.has_secret = not is_dry_run
            return accepted
        return self._accept(kind, body)

    async def apply(
        self, kind: Kind, namespace: str, body: Manifest, *, subresource: str = "", manager: str = "operator"
    ) -> Manifest:
        self.managers.append(manager)
        return self._accept(kind, body if kind != JOBS else a_job(status=body["status"]))

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
        raise errors.NotFound(f"{kind.plural} {name} not found")

    def _accept(self, kind: Kind, body: Manifest) -> Manifest:
        self.num_writes += 1
        for refused in (kind.name, body["metadata"].get("name")):
            if refused in self.refused:
                raise self.refused[refused]
        version = str(100 + self.num_writes)
        known = {"uid": f"uid-{version}", "namespace": "default", "resourceVersion": version}
        return {**body, "metadata": known | body["metadata"] | {"resourceVersion": version}}


def a_job(**more: Any) -> dict[str, Any]:
    meta = {"name": "copy", "namespace": "default", "uid": UID, "generation": 1, "resourceVersion": "4"}
    return {"metadata": meta, "spec": spec().to_object(), **more}


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def cache() -> Cache:
    made = Cache()
    made.put(JOBS, a_job())
    return made


@pytest.fixture
def controller(client: FakeClient, cache: Cache) -> Controller:
    return Controller(client, cache, Memory(), runtime_image=IMAGE, clock=lambda: NOW)


async def test_a_new_job_is_looked_at_once_and_then_left_alone(controller, client, cache):
    await controller.reconcile(KEY)
    assert len(cache.pods(UID)) == 3
    await controller.reconcile(KEY)
    num_writes = client.num_writes
    deadline = spec().startup_deadline_seconds
    assert await controller.reconcile(KEY) == deadline  # nothing but the deadline is waited for
    assert client.num_writes == num_writes


async def test_a_refused_pod_is_tried_again_after_a_while_and_not_without_rest(controller, client):
    client.refused = {PODS.name: errors.Forbidden("exceeded quota: small")}
    waits = [await controller.reconcile(KEY) for _ in range(3)]
    assert waits[-1] == 10.0


def running(cache: Cache) -> dict[str, Any]:
    found: dict[str, Any] = next(c for c in cache.job(KEY)["status"]["conditions"] if c["type"] == "Running")
    return found


@pytest.mark.parametrize("kind", [PODS, SECRETS])
async def test_a_webhook_that_is_down_is_said_and_the_creation_tried_again(controller, client, cache, kind):
    why = 'Internal error occurred: failed calling webhook "x.example.test": connection refused'
    client.refused = {kind.name: errors.ServerFailed(why)}
    waits = [await controller.reconcile(KEY) for _ in range(3)]
    assert waits[-1] == 10.0
    assert running(cache)["reason"] == "CreateFailed" and why in running(cache)["message"]
    assert cache.job(KEY)["status"]["lastFailure"]["reason"] == "CreateFailed"
    client.refused = {}
    await controller.reconcile(KEY)
    await controller.reconcile(KEY)
    assert (running(cache)["reason"], len(cache.pods(UID))) == ("PodsStarting", 3)


async def test_a_hiccup_with_one_pod_does_not_hide_why_another_is_refused(controller, client, cache):
    await controller.reconcile(KEY)
    names = sorted(pod["metadata"]["name"] for pod in cache.pods(UID))
    for pod in cache.pods(UID):
        cache.remove(PODS, pod)
    first, *_, last = names
    client.refused = {first: errors.Transient("busy"), last: errors.Forbidden("exceeded quota: small")}
    await controller.reconcile(KEY)
    await controller.reconcile(KEY)
    assert running(cache)["reason"] == "QuotaExceeded" and last in running(cache)["message"]


async def test_a_server_that_is_away_is_left_to_the_queue_to_try_again(controller, client):
    client.refused = {PODS.name: errors.Transient("away")}
    with pytest.raises(errors.Transient):
        await controller.reconcile(KEY)


async def test_a_job_that_is_gone_before_its_status_is_written_gets_no_children(controller, client, cache):
    client.refused = {JOBS.name: errors.Conflict("the uid is another")}
    assert await controller.reconcile(KEY) is None
    assert cache.pods(UID) == ()


async def test_a_lost_secret_is_said_instead_of_made_again_under_running_pods(controller, client, cache):
    await controller.reconcile(KEY)
    client.has_secret = False  # somebody deleted it
    engine = next(pod for pod in cache.pods(UID) if "-rollout-1-" in pod["metadata"]["name"])
    cache.remove(PODS, engine)
    await controller.reconcile(KEY)
    await controller.reconcile(KEY)
    ready = next(c for c in cache.job(KEY)["status"]["conditions"] if c["type"] == "RolloutReady")
    assert ready["reason"] == "TokensLost"
    assert "delete all its pods" in ready["message"]
    assert (client.has_secret, len(cache.pods(UID))) == (False, 2)


async def test_news_is_announced_once_after_the_status_says_it(controller, client):
    await controller.reconcile(KEY)
    await controller.reconcile(KEY)
    assert [event["reason"] for event in client.events] == ["ModeChosen"]


async def test_nothing_is_announced_that_the_status_does_not_say(controller, client):
    client.refused = {JOBS.name: errors.Conflict("the uid is another")}
    await controller.reconcile(KEY)
    assert client.events == []


@pytest.mark.parametrize(
    "error", [errors.Forbidden("no right to events"), errors.Transient("away"), errors.AlreadyExists("taken")]
)
async def test_an_event_that_cannot_be_written_disturbs_nothing(controller, client, cache, error):
    client.refused = {EVENTS.name: error}
    await controller.reconcile(KEY)
    assert len(cache.pods(UID)) == 3


async def test_a_job_whose_status_another_release_wrote_says_so_once_and_is_left_alone(
    controller, client, cache
):
    cache.put(JOBS, a_job(status={"attempt": 1, "somethingNew": 1}))
    newer = a_job(status={"attempt": 1, "somethingNew": 1})
    newer["metadata"]["resourceVersion"] = "5"
    cache.put(JOBS, newer)
    assert await controller.reconcile(KEY) is None
    (said,) = cache.job(KEY)["status"]["conditions"]
    assert (said["type"], said["status"], said["reason"]) == ("Ready", "False", "SchemaSkew")
    assert "somethingNew" in said["message"] and "another release" in said["message"]
    assert (client.managers, cache.pods(UID)) == (["grpo-operator-skew"], ())
    told = a_job(status={"attempt": 1, "somethingNew": 1, "conditions": [said]})
    told["metadata"]["resourceVersion"] = "999"
    cache.put(JOBS, told)
    await controller.reconcile(KEY)
    assert client.num_writes == 1
