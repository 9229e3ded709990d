"""Leader election, on a fake API server that keeps one Lease and a clock that a test moves."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from grpo_operator import errors
from grpo_operator.client import Client
from grpo_operator.kinds import Kind, Manifest
from grpo_operator.lease import LeadershipLostError, Lease, LeaseTimes

# Short in real time; expiry is judged by the fake clock alone.
TIMES = LeaseTimes(duration=15, renew_deadline=10.0, retry=0.01)


class FakeLeases(Client):
    """The one Lease, with the API server's rules for versions; `trouble` is what every request meets."""

    def __init__(self) -> None:
        self.lease: Manifest | None = None
        self.version = 0
        self.trouble: errors.KubernetesError | None = None
        self.num_writes = 0
        self.num_requests = 0

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
        await self._meet_trouble()
        if self.lease is None:
            raise errors.NotFound(f"leases {name} not found")
        return self.lease

    async def create(self, kind: Kind, namespace: str, body: Manifest) -> Manifest:
        await self._meet_trouble()
        if self.lease is not None:
            raise errors.AlreadyExists("leases already exists")
        return self._store(body)

    async def apply(self, kind: Kind, namespace: str, body: Manifest, *, subresource: str = "") -> Manifest:
        await self._meet_trouble()
        if body["metadata"]["resourceVersion"] != str(self.version):
            raise errors.Conflict("the object has been modified")
        return self._store(body)

    @property
    def holder(self) -> str:
        return str(self.lease["spec"]["holderIdentity"]) if self.lease else ""

    async def _meet_trouble(self) -> None:
        self.num_requests += 1
        await asyncio.sleep(0)
        if self.trouble:
            raise self.trouble

    def _store(self, body: Manifest) -> Manifest:
        self.version += 1
        self.num_writes += 1
        self.lease = {**body, "metadata": body["metadata"] | {"resourceVersion": str(self.version)}}
        return self.lease


class FakeTime:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def server() -> FakeLeases:
    return FakeLeases()


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


def candidate(server: FakeLeases, time: FakeTime, name: str, times: LeaseTimes = TIMES) -> Lease:
    return Lease(
        server,
        namespace="here",
        name="operator",
        identity=name,
        times=times,
        monotonic=time,
        # A clock that is years off, as on a machine without time service.
        clock=lambda: datetime(2001, 1, 1, tzinfo=UTC),
    )


async def until(check: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not check():  # noqa: ASYNC110 - any state of the fake may be waited for
            await asyncio.sleep(0.001)


async def test_the_first_to_ask_leads_and_the_second_stands_by(server: FakeLeases, time: FakeTime):
    await candidate(server, time, "first").acquire()
    looks: list[int] = []
    waiting = asyncio.create_task(candidate(server, time, "second").acquire(on_look=lambda: looks.append(1)))
    await until(lambda: len(looks) >= 3)
    assert server.holder == "first" and not waiting.done()
    assert server.num_writes == 1
    waiting.cancel()


async def test_of_many_that_ask_at_once_exactly_one_leads(server: FakeLeases, time: FakeTime):
    asking = [asyncio.create_task(candidate(server, time, f"n{i}").acquire()) for i in range(8)]
    await until(lambda: server.num_requests >= 8 * 5)
    assert sum(task.done() for task in asking) == 1
    for task in asking:
        task.cancel()


async def test_a_lease_that_is_not_renewed_is_taken_after_its_duration_and_not_before(
    server: FakeLeases, time: FakeTime
):
    await candidate(server, time, "dead").acquire()
    looks: list[int] = []
    waiting = asyncio.create_task(candidate(server, time, "heir").acquire(on_look=lambda: looks.append(1)))
    await until(lambda: looks)
    time.now += 14.9
    seen = len(looks)
    await until(lambda: len(looks) >= seen + 3)
    assert not waiting.done()
    time.now += 0.2
    await asyncio.wait_for(waiting, 5)
    assert server.holder == "heir"
    assert server.lease is not None and server.lease["spec"]["leaseTransitions"] == 1


async def test_a_lease_that_is_renewed_is_never_taken(server: FakeLeases, time: FakeTime):
    leader = candidate(server, time, "leader")
    await leader.acquire()
    holding = asyncio.create_task(leader.hold())
    waiting = asyncio.create_task(candidate(server, time, "standby").acquire())
    for _ in range(20):
        time.now += 3
        written = server.num_writes
        await until(lambda written=written: server.num_writes >= written + 2)
    assert server.holder == "leader"
    assert not waiting.done() and not holding.done()
    holding.cancel()
    waiting.cancel()


async def test_a_leader_that_stops_in_order_hands_over_at_once(server: FakeLeases, time: FakeTime):
    leader = candidate(server, time, "leader")
    await leader.acquire()
    await leader.release()
    await asyncio.wait_for(candidate(server, time, "next").acquire(), 5)
    assert server.holder == "next"


async def test_a_lease_of_somebody_else_is_not_given_back(server: FakeLeases, time: FakeTime):
    await candidate(server, time, "leader").acquire()
    await candidate(server, time, "other").release()
    assert server.holder == "leader"


async def test_the_restarted_container_of_the_same_pod_takes_its_lease_up_at_once(
    server: FakeLeases, time: FakeTime
):
    await candidate(server, time, "pod-0").acquire()
    await asyncio.wait_for(candidate(server, time, "pod-0").acquire(), 5)
    assert server.lease is not None and server.lease["spec"]["leaseTransitions"] == 0


async def test_a_leader_whose_lease_was_taken_stops_at_its_next_look(server: FakeLeases, time: FakeTime):
    leader = candidate(server, time, "leader")
    await leader.acquire()
    assert server.lease is not None
    server.lease["spec"]["holderIdentity"] = "usurper"
    with pytest.raises(LeadershipLostError, match="another operator has taken"):
        await asyncio.wait_for(leader.hold(), 5)


@pytest.mark.parametrize("trouble", [errors.Transient("the API server is away"), errors.Forbidden("no")])
async def test_a_leader_that_cannot_renew_gives_up_before_others_may_take_over(
    server: FakeLeases, time: FakeTime, trouble: errors.KubernetesError
):
    leader = candidate(server, time, "leader")
    await leader.acquire()
    renewed_at = time.now
    holding = asyncio.create_task(leader.hold())
    server.trouble = trouble
    time.now += 9.5
    asked = server.num_requests
    await until(lambda: server.num_requests >= asked + 3)
    assert not holding.done(), "a short outage must not end a leader"
    time.now += 0.5
    with pytest.raises(LeadershipLostError, match="could not be renewed"):
        await asyncio.wait_for(holding, 5)
    assert time.now - renewed_at < TIMES.duration


async def test_a_request_that_hangs_counts_as_one_that_failed(server: FakeLeases, time: FakeTime):
    leader = candidate(server, time, "leader")
    await leader.acquire()

    async def hang(*_: Any) -> Manifest:
        await asyncio.Event().wait()
        raise AssertionError

    server.get = hang  # type: ignore[method-assign]
    time.now += 10
    with pytest.raises(LeadershipLostError, match="could not be renewed"):
        await asyncio.wait_for(leader.hold(), 5)


async def test_somebody_who_touches_the_lease_does_not_end_the_leader(server: FakeLeases, time: FakeTime):
    leader = candidate(server, time, "leader")
    await leader.acquire()
    holding = asyncio.create_task(leader.hold())
    for _ in range(5):
        server.version += 1  # between a look and the write, as often as not
        assert server.lease is not None
        server.lease["metadata"]["resourceVersion"] = str(server.version)
        written = server.num_writes
        await until(lambda written=written: server.num_writes > written)
    assert not holding.done()
    holding.cancel()


async def test_without_the_right_to_leases_the_way_out_is_named(server: FakeLeases, time: FakeTime):
    server.trouble = errors.Forbidden("leases is forbidden")
    with pytest.raises(errors.Forbidden, match="--leader-elect=false"):
        await candidate(server, time, "powerless").acquire()


def test_the_margins_leave_time_between_the_end_of_one_leader_and_the_next():
    times = LeaseTimes()
    assert times.renew_deadline + times.retry < times.duration
