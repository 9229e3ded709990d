"""Events are read only where nothing else shows why a pod does not start."""

import asyncio
from collections import Counter
from typing import Any

from grpo_operator.cluster import errors
from grpo_operator.cluster.client import Listing
from grpo_operator.cluster.kinds import EVENTS, PODS, Kind
from grpo_operator.observe.cache import Cache, Key
from grpo_operator.observe.pod_events import (
    LISTS_IN_FLIGHT,
    LISTS_IN_FLIGHT_OF_A_NAMESPACE,
    LONGEST_PAUSE_SECONDS,
    PATIENCE_SECONDS,
    EventReader,
    pause_seconds,
)

from .until import until

OWNER = {
    "apiVersion": "grpo.dev/v1alpha1",
    "kind": "GRPOJob",
    "name": "copy",
    "uid": "job-uid",
    "controller": True,
}


class FakeEvents:
    """Answers lists of Events, and counts them."""

    def __init__(self) -> None:
        self.events: tuple[dict[str, Any], ...] = ()
        self.is_forbidden = False
        self.asked: list[str] = []
        self.asked_in = Counter[str | None]()
        self.hangs_in = ""
        """A namespace in which every list hangs until `answers` is set."""
        self.answers = asyncio.Event()

    async def list(self, kind: Kind, namespace: str | None, *, fields: str, **_: Any) -> Listing[Any]:
        assert kind == EVENTS
        self.asked.append(fields)
        self.asked_in[namespace] += 1
        if namespace == self.hangs_in:
            await self.answers.wait()
        if self.is_forbidden:
            raise errors.Forbidden("events is forbidden")
        return Listing(items=self.events, resource_version=1)


class EventReading:
    def __init__(self) -> None:
        self.now = 100.0
        self.server = FakeEvents()
        self.cache = Cache()
        self.woken: list[Key] = []
        self.reader = EventReader(
            self.server,  # type: ignore[arg-type]
            self.cache,
            wake=self.woken.append,
            monotonic=lambda: self.now,
        )

    def report(
        self,
        status: dict[str, Any],
        *,
        version: int = 1,
        namespace: str = "default",
        uid: str = "pod-uid",
    ) -> None:
        meta = {
            "name": f"copy-{uid}-trainer-a1-0",
            "namespace": namespace,
            "uid": uid,
            "resourceVersion": str(version),
            "ownerReferences": [OWNER],
        }
        self.cache.put(PODS, {"metadata": meta, "spec": {"nodeName": "node-a"}, "status": status})

    async def look_after(self, seconds: float) -> None:
        self.now += seconds
        async with asyncio.TaskGroup() as group:
            self.reader.read_due(group)


def warning(message: str) -> dict[str, Any]:
    return {"type": "Warning", "reason": "FailedMount", "message": message, "metadata": {}}


async def test_the_events_of_a_pod_that_does_not_start_are_read_and_its_job_is_reconciled():
    reading = EventReading()
    reading.report({"phase": "Pending"})
    await reading.look_after(0)
    assert reading.server.asked == []
    reading.server.events = (warning("no such path"),)
    await reading.look_after(PATIENCE_SECONDS)
    assert reading.server.asked == ["involvedObject.uid=pod-uid"]
    assert reading.woken == [("default", "copy")]
    assert reading.cache.events("pod-uid") == reading.server.events


async def test_hundreds_of_pods_whose_lists_hang_delay_no_pod_of_another_namespace():
    reading = EventReading()
    for number in range(300):
        reading.report({"phase": "Pending"}, namespace="crowded", uid=f"crowded-{number}")
    reading.report({"phase": "Pending"}, namespace="other", uid="other-0")
    reading.server.hangs_in = "crowded"
    reader, asked = reading.reader, reading.server.asked_in
    async with asyncio.TaskGroup() as group:
        reader.read_due(group)
        reading.now += PATIENCE_SECONDS
        reader.read_due(group)
        await until(lambda: asked["other"] == 1)  # of the same round
        for number in range(1, 20):
            reading.report({"phase": "Pending"}, namespace="other", uid=f"other-{number}")
        reader.read_due(group)
        reading.now += PATIENCE_SECONDS
        reader.read_due(group)
        await until(lambda: asked["other"] == 21)
        assert asked["crowded"] == LISTS_IN_FLIGHT_OF_A_NAMESPACE < LISTS_IN_FLIGHT
        reading.server.answers.set()
    assert asked["crowded"] == 300  # one that waits for its turn is not read twice


async def test_events_that_are_known_already_wake_no_job():
    reading = EventReading()
    reading.server.events = (warning("no such path"),)
    reading.report({"phase": "Pending"})
    await reading.look_after(0)
    for _ in range(3):
        await reading.look_after(LONGEST_PAUSE_SECONDS)
    assert len(reading.server.asked) == 3
    assert reading.woken == [("default", "copy")]


async def test_the_events_of_a_pod_that_runs_are_not_read():
    reading = EventReading()
    reading.report({"phase": "Pending"})
    await reading.look_after(0)
    reading.report({"phase": "Running"}, version=2)
    await reading.look_after(PATIENCE_SECONDS)
    assert reading.server.asked == []


async def test_without_the_right_to_read_events_the_operator_goes_on():
    reading = EventReading()
    reading.server.is_forbidden = True
    reading.report({"phase": "Pending"})
    await reading.look_after(0)
    await reading.look_after(PATIENCE_SECONDS)
    assert reading.woken == []


async def test_events_of_a_pod_that_is_gone_are_forgotten():
    reading = EventReading()
    reading.server.events = (warning("no such path"),)
    reading.report({"phase": "Pending"})
    await reading.look_after(0)
    await reading.look_after(PATIENCE_SECONDS)
    (pod,) = reading.cache.pending_pods()
    reading.cache.remove(PODS, pod)
    assert reading.cache.events("pod-uid") == ()
    assert not reading.cache.put_events(pod, reading.server.events)


def test_a_problem_that_begins_late_is_still_seen_soon():
    assert pause_seconds(0.0) == PATIENCE_SECONDS
    assert pause_seconds(20.0) == 10.0
    assert pause_seconds(3600.0) == LONGEST_PAUSE_SECONDS
