"""Children that the API server refuses: tried with one pod, ever less often, said once."""

import logging
from datetime import timedelta
from typing import Any

import pytest

from grpo_operator.children.names import Names
from grpo_operator.cluster import errors
from grpo_operator.cluster.kinds import CONFIG_MAPS, EVENTS, JOBS, PODS, SECRETS, Kind, KubeObject
from grpo_operator.observe.cache import Cache

from .controlled_job import KEY, Clock, a_job, condition_of, controller_of, pod_names, status_of
from .fake_api_server import FakeApiServer
from .fake_cluster import UID, spec

QUOTA = errors.Forbidden("exceeded quota: small")


class CountingApiServer(FakeApiServer):
    """Notes the name of each object that somebody tries to create."""

    def __init__(self) -> None:
        super().__init__()
        self.tried: list[tuple[Kind, str]] = []

    async def create(self, kind: Kind, namespace: str, body: KubeObject, **more: Any) -> KubeObject:
        self.tried.append((kind, body["metadata"]["name"]))
        return await super().create(kind, namespace, body, **more)

    def pods_tried(self) -> list[str]:
        return [name for kind, name in self.tried if kind == PODS]


class Refused:
    """A controller of one job, and its API server."""

    def __init__(self, client: CountingApiServer | None = None, **changes: Any) -> None:
        self.client, self.cache, self.clock = client or CountingApiServer(), Cache(), Clock()
        self.client.put(JOBS, a_job(spec=spec(**changes).to_object()))
        self.client.show(self.cache)
        self.controller = controller_of(self.client, self.cache, clock=self.clock)

    async def settle(self) -> float | None:
        """Reconcile as often as the controller asks for it at once; returns when it wants the next time."""
        while True:
            wait = await self.controller.reconcile(KEY)
            if wait != 0.0:
                return wait

    async def pass_time(self, seconds: float) -> float | None:
        self.clock.now += timedelta(seconds=seconds)
        return await self.settle()


async def test_a_gang_that_is_refused_is_tried_with_one_pod():
    job = Refused(trainer={"numNodes": 4, "processesPerNode": 1})
    job.client.refused = {PODS.name: QUOTA}
    await job.settle()
    assert len(job.client.pods_tried()) == 1
    assert condition_of(job.client, "Running")["reason"] == "QuotaExceeded"


async def test_a_refused_job_is_tried_ever_less_often_and_never_given_up():
    job = Refused()
    job.client.refused = {PODS.name: QUOTA}
    waits = [await job.settle()]
    for _ in range(6):
        assert waits[-1] is not None
        waits.append(await job.pass_time(waits[-1]))
    assert waits == [10.0, 20.0, 40.0, 80.0, 138.0, 138.0, 138.0]
    assert len(job.client.pods_tried()) == 7
    job.client.refused = {}
    await job.pass_time(138)
    assert len(pod_names(job.client, "trainer")) == 1


async def test_what_is_refused_is_one_event_however_often_it_is_tried_and_by_whom():
    job = Refused()
    job.client.refused = {PODS.name: QUOTA}
    await job.settle()
    for _ in range(3):
        await job.pass_time(140)
    job.controller = controller_of(job.client, job.cache, clock=job.clock)  # another operator process
    for _ in range(3):
        await job.pass_time(140)
    events = [event for event in job.client.objects(EVENTS) if event["reason"] == "QuotaExceeded"]
    assert [(event["type"], "exceeded quota: small" in event["message"]) for event in events] == [
        ("Warning", True)
    ]


async def test_nothing_is_tried_before_its_time_whatever_wakes_the_job():
    job = Refused()
    job.client.refused = {PODS.name: QUOTA}
    await job.settle()
    tried = len(job.client.tried)
    assert await job.pass_time(4) == 6.0
    assert await job.pass_time(0) == 6.0
    assert len(job.client.tried) == tried


async def test_another_child_does_not_wait_for_the_refused_one():
    """The engines are refused; then the trainer pod is lost, and its successor must not wait for them."""
    job = Refused()
    await job.settle()
    job.client.refused = {PODS.name: QUOTA}
    await job.settle()
    refused = [name for name in job.client.pods_tried() if "rollout" in name]
    assert len(refused) == 1
    job.client.refused = {}
    (trainer,) = pod_names(job.client, "trainer")
    job.client.remove(PODS, trainer)
    job.client.show(job.cache)
    await job.settle()
    assert len([name for name in job.client.pods_tried() if "trainer" in name]) == 2


async def test_a_refusal_is_logged_once(caplog):
    caplog.set_level(logging.INFO)
    job = Refused(trainer={"numNodes": 4, "processesPerNode": 1})
    job.client.refused = {PODS.name: QUOTA}
    wait = await job.settle()
    for used in range(5):
        job.client.refused = {PODS.name: errors.Forbidden(f"exceeded quota: small, used: {used}")}
        wait = await job.pass_time(wait or 0.0)
    assert len([line for line in caplog.messages if "exceeded quota" in line]) == 1


GANG = {"numNodes": 3, "processesPerNode": 1}
_, SECOND, THIRD = (Names.of(job="copy", uid=UID).trainer(attempt=1, index=index) for index in range(3))


class OnceAwayApiServer(CountingApiServer):
    """Gives no answer when the second pod of a gang is made, once."""

    was_away = False

    async def create(self, kind: Kind, namespace: str, body: KubeObject, **more: Any) -> KubeObject:
        if body["metadata"]["name"] == SECOND and not self.was_away:
            self.was_away = True
            raise errors.Transient("the API server is away")
        return await super().create(kind, namespace, body, **more)


async def test_a_server_that_is_away_for_one_pod_is_an_error_and_the_job_is_tried_again():
    job = Refused(OnceAwayApiServer(), trainer=GANG)
    with pytest.raises(errors.Transient, match="is away"):
        await job.settle()
    await job.settle()
    assert len(pod_names(job.client, "trainer")) == 3


async def test_a_server_that_is_away_for_one_pod_is_no_error_beside_a_refused_pod_which_is_tried_again():
    job = Refused(OnceAwayApiServer(), trainer=GANG)
    job.client.refused = {THIRD: QUOTA}
    wait = await job.settle()
    assert wait is not None and condition_of(job.client, "Running")["reason"] == "QuotaExceeded"
    job.client.refused = {}
    await job.pass_time(wait)
    assert len(pod_names(job.client, "trainer")) == 3


@pytest.mark.parametrize("kind", [PODS, SECRETS, CONFIG_MAPS])
async def test_a_webhook_that_is_down_is_in_the_status_and_the_creation_is_tried_again(kind):
    job = Refused()
    why = 'Internal error occurred: failed calling webhook "x.example.test": connection refused'
    job.client.refused = {kind.name: errors.ServerFailed(why)}
    assert await job.settle() == 10.0
    running = condition_of(job.client, "Running")
    assert running["reason"] == "CreateFailed" and why in running["message"]
    assert status_of(job.client)["lastFailure"]["reason"] == "CreateFailed"
    job.client.refused = {}
    await job.pass_time(10)
    await job.settle()
    assert (condition_of(job.client, "Running")["reason"], len(pod_names(job.client))) == ("PodsStarting", 3)


async def test_the_first_refusal_of_another_child_is_tried_again_as_soon_as_any_first():
    job = Refused()
    await job.settle()
    job.client.refused = {PODS.name: QUOTA}
    wait = await job.settle()
    for _ in range(5):
        wait = await job.pass_time(wait or 0.0)
    assert wait == 138.0
    (trainer,) = pod_names(job.client, "trainer")
    job.client.remove(PODS, trainer)
    job.client.show(job.cache)
    await job.settle()
    waits = [await job.pass_time(seconds) for seconds in (0, 10)]  # after the pause between two attempts
    assert "trainer-a2" in job.client.pods_tried()[-1]
    assert 10.0 in waits or waits[-1] == 20.0
