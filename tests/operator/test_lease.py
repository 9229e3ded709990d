"""Leader election, on a fake API server that keeps one Lease and a clock that a test moves."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from grpo_operator.cluster import errors
from grpo_operator.cluster.client import Client
from grpo_operator.cluster.kinds import LEASES, Kind, KubeObject
from grpo_operator.cluster.lease import LeadershipLostError, Lease, LeaseTimes

from .fake_api_server import FakeApiServer
from .until import until

# Short in real time; expiry is judged by the fake clock alone.
TIMES = LeaseTimes(duration=15, renew_deadline=10.0, retry=0.01)


class FakeLeases(Client):
    """An API server that keeps one Lease. `failure` is what every request over this connection meets; another
    connection reaches the same server."""

    def __init__(self, other: "FakeLeases | None" = None) -> None:
        self.api: FakeApiServer = other.api if other else FakeApiServer()
        self.failure: errors.KubernetesError | None = None
        self.num_requests = 0

    async def get(self, kind: Kind, namespace: str, name: str) -> KubeObject:
        await self._meet_failure()
        return await self.api.get(kind, namespace, name)

    async def create(
        self, kind: Kind, namespace: str, body: KubeObject, *, is_dry_run: bool = False
    ) -> KubeObject:
        await self._meet_failure()
        return await self.api.create(kind, namespace, body)

    async def apply(
        self,
        kind: Kind,
        namespace: str,
        body: KubeObject,
        *,
        subresource: str = "",
        manager: str = "operator",
    ) -> KubeObject:
        await self._meet_failure()
        return await self.api.apply(kind, namespace, body, subresource=subresource, manager=manager)

    @property
    def num_writes(self) -> int:
        return self.api.num_writes

    @property
    def spec(self) -> dict[str, Any]:
        """What the Lease says."""
        (lease,) = self.api.objects(LEASES)
        spec: dict[str, Any] = lease["spec"]
        return spec

    def write(self, **changes: Any) -> None:
        """Somebody else writes it."""
        (lease,) = self.api.objects(LEASES)
        self.api.put(LEASES, {**lease, **changes})

    async def _meet_failure(self) -> None:
        self.num_requests += 1
        await asyncio.sleep(0)
        if self.failure:
            raise self.failure


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
        namespace="default",
        name="operator",
        identity=name,
        times=times,
        monotonic=time,
        # A clock that is years off, as on a machine without time service.
        clock=lambda: datetime(2001, 1, 1, tzinfo=UTC) + timedelta(seconds=time()),
    )


async def test_the_first_to_ask_leads_and_the_second_stands_by(server: FakeLeases, time: FakeTime):
    await candidate(server, time, "first").acquire()
    looks: list[int] = []
    waiting = asyncio.create_task(candidate(server, time, "second").acquire(on_look=lambda: looks.append(1)))
    await until(lambda: len(looks) >= 3)
    assert server.spec["holderIdentity"] == "first" and not waiting.done()
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
    await asyncio.wait_for(waiting, 60)
    assert server.spec["holderIdentity"] == "heir"
    assert server.spec["leaseTransitions"] == 1


async def test_of_many_that_take_over_at_once_exactly_one_leads(server: FakeLeases, time: FakeTime):
    await candidate(server, time, "dead").acquire()
    looks: list[int] = []
    asking = [
        asyncio.create_task(candidate(server, time, f"n{i}").acquire(on_look=lambda: looks.append(1)))
        for i in range(8)
    ]
    await until(lambda: len(looks) >= 8)
    time.now += TIMES.duration
    asked = server.num_requests
    await until(lambda: server.num_requests >= asked + 8 * 5)
    assert sum(task.done() for task in asking) == 1
    for task in asking:
        task.cancel()


async def test_a_lease_that_is_renewed_is_never_taken(server: FakeLeases, time: FakeTime):
    leader = candidate(server, time, "leader")
    await leader.acquire()
    holding = asyncio.create_task(leader.hold())
    waiting = asyncio.create_task(candidate(server, time, "standby").acquire())
    for _ in range(20):
        time.now += 3
        written = server.num_writes
        await until(lambda written=written: server.num_writes >= written + 2)
    assert server.spec["holderIdentity"] == "leader"
    assert not waiting.done() and not holding.done()
    holding.cancel()
    waiting.cancel()


async def test_a_leader_that_stops_in_order_hands_over_at_once(server: FakeLeases, time: FakeTime):
    leader = candidate(server, time, "leader")
    await leader.acquire()
    await leader.release()
    await asyncio.wait_for(candidate(server, time, "next").acquire(), 60)
    assert server.spec["holderIdentity"] == "next"


async def test_a_lease_of_somebody_else_is_not_given_back(server: FakeLeases, time: FakeTime):
    await candidate(server, time, "leader").acquire()
    await candidate(server, time, "other").release()
    assert server.spec["holderIdentity"] == "leader"


async def test_the_restarted_container_of_the_same_pod_takes_its_lease_up_at_once(
    server: FakeLeases, time: FakeTime
):
    await candidate(server, time, "pod-0").acquire()
    await asyncio.wait_for(candidate(server, time, "pod-0").acquire(), 60)
    assert server.spec["leaseTransitions"] == 0


async def test_a_leader_whose_lease_was_taken_stops_at_its_next_renewal(server: FakeLeases, time: FakeTime):
    leader = candidate(server, time, "leader")
    await leader.acquire()
    server.write(spec=server.spec | {"holderIdentity": "usurper"})
    with pytest.raises(LeadershipLostError, match="another operator has taken"):
        await asyncio.wait_for(leader.hold(), 60)


@pytest.mark.parametrize("failure", [errors.Transient("the API server is away"), errors.Forbidden("no")])
async def test_a_leader_that_cannot_renew_gives_up_before_a_standby_takes_over(
    server: FakeLeases, time: FakeTime, failure: errors.KubernetesError
):
    cut_off = FakeLeases(server)
    leader = candidate(cut_off, time, "leader")
    await leader.acquire()
    looks: list[int] = []
    holding = asyncio.create_task(leader.hold())
    waiting = asyncio.create_task(candidate(server, time, "heir").acquire(on_look=lambda: looks.append(1)))
    await until(lambda: looks)
    cut_off.failure = failure
    cut_off_at, gave_up_at = time.now, None
    while not waiting.done():
        assert time.now < cut_off_at + 10 * TIMES.duration, "nobody leads"
        time.now += 0.5
        tries, seen = cut_off.num_requests + 2, len(looks) + 2
        await until(lambda tries=tries: holding.done() or cut_off.num_requests >= tries)
        if holding.done() and gave_up_at is None:
            gave_up_at = time.now
            assert not waiting.done()
        await until(lambda seen=seen: waiting.done() or len(looks) >= seen)
    assert gave_up_at is not None, "two lead at once"
    assert gave_up_at < time.now == cut_off_at + TIMES.duration
    with pytest.raises(LeadershipLostError, match="could not be renewed"):
        await holding


async def test_an_outage_that_is_shorter_than_the_deadline_after_the_last_renewal_ends_no_leader(
    server: FakeLeases, time: FakeTime
):
    leader = candidate(server, time, "leader")
    await leader.acquire()
    holding = asyncio.create_task(leader.hold())
    for _ in range(2):  # the second outage begins long after the Lease was acquired
        time.now += 9
        written = server.num_writes
        await until(lambda written=written: server.num_writes >= written + 2)
        server.failure = errors.Transient("the API server is away")
        time.now += 9.5
        asked = server.num_requests
        await until(lambda asked=asked: server.num_requests >= asked + 3)
        server.failure = None
        written = server.num_writes
        await until(lambda written=written: server.num_writes > written)
    assert not holding.done()
    holding.cancel()


async def test_a_request_that_hangs_counts_as_one_that_failed(server: FakeLeases, time: FakeTime):
    leader = candidate(server, time, "leader")
    await leader.acquire()

    async def hang(*_: Any) -> KubeObject:
        await asyncio.Event().wait()
        raise AssertionError

    server.get = hang  # type: ignore[method-assign]
    time.now += 10
    with pytest.raises(LeadershipLostError, match="could not be renewed"):
        await asyncio.wait_for(leader.hold(), 60)


async def test_another_write_to_the_lease_does_not_end_the_leader(server: FakeLeases, time: FakeTime):
    leader = candidate(server, time, "leader")
    await leader.acquire()
    holding = asyncio.create_task(leader.hold())
    for number in range(5):
        server.write(touched=number)  # between a look and the write, as often as not
        written = server.num_writes
        await until(lambda written=written: server.num_writes > written)
    assert not holding.done()
    holding.cancel()


async def test_without_the_right_to_leases_the_error_names_the_fix(server: FakeLeases, time: FakeTime):
    server.failure = errors.Forbidden("leases is forbidden")
    with pytest.raises(errors.Forbidden, match="--leader-elect=false"):
        await candidate(server, time, "powerless").acquire()


def test_the_margins_leave_time_between_the_end_of_one_leader_and_the_next():
    times = LeaseTimes()
    assert times.renew_deadline + times.retry < times.duration


async def test_a_renewal_whose_answer_is_slow_counts_from_when_it_was_asked_for(
    server: FakeLeases, time: FakeTime
):
    leader = candidate(server, time, "leader")
    await leader.acquire()
    write = server.apply

    async def apply_slowly(*arguments: Any, **options: Any) -> KubeObject:
        written = await write(*arguments, **options)
        time.now += 6
        server.failure = errors.Transient("the API server is away")
        return written

    server.apply = apply_slowly  # type: ignore[method-assign]
    holding = asyncio.create_task(leader.hold())
    await until(lambda: server.failure)
    time.now += 5
    with pytest.raises(LeadershipLostError, match="could not be renewed"):
        await asyncio.wait_for(holding, 60)
