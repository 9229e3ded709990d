"""The operator process on a fake API server: its first resync, its Lease, namespaces it may not list."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import kopf
import pytest
from aiohttp import ClientSession

from grpo_api.v1alpha1.spec import Gang
from grpo_operator.children.gangs import GANG_SCHEDULERS
from grpo_operator.cluster import errors
from grpo_operator.cluster.client import FIELD_MANAGER, Listing
from grpo_operator.cluster.kinds import JOBS, LEASES, PODS, WATCHED, WORKLOADS, Kind, KubeObject
from grpo_operator.metrics import OperatorMetrics
from grpo_operator.observe.served_schema import EVERYTHING
from grpo_operator.operator import Operator
from grpo_operator.permissions import Permissions
from grpo_operator.settings import Settings

from .controlled_job import a_job, pod_names
from .fake_api_server import FakeApiServer, job_schema
from .fake_cluster import IMAGE
from .until import until


class FakeServer(FakeApiServer):
    """`forbidden` are the (kind, namespace) it does not list, `hangs_at` the number of the list that never
    comes back, `schema_failure` what it says instead of a schema."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: datetime.now(UTC))
        self.forbidden: set[tuple[Kind, str]] = set()
        self.hangs_at: int | None = None
        self.schema_failure: errors.KubernetesError | None = None
        self.lists: list[tuple[Kind, str | None]] = []
        self.renewals: list[str] = []

    @property
    def is_hanging(self) -> bool:
        return self.hangs_at is not None and len(self.lists) > self.hangs_at

    async def list(self, kind: Kind, namespace: str | None, **more: Any) -> Listing[Any]:
        self.lists.append((kind, namespace))
        if self.is_hanging:
            await asyncio.Event().wait()
        if (kind, namespace) in self.forbidden:
            raise errors.Forbidden(f"{kind.plural} is forbidden in the namespace {namespace}")
        return await super().list(kind, namespace, **more)

    async def schema(self, kind: Kind) -> KubeObject | None:
        if self.schema_failure is not None:
            raise self.schema_failure
        return await super().schema(kind)

    async def create(
        self, kind: Kind, namespace: str, body: KubeObject, *, is_dry_run: bool = False
    ) -> KubeObject:
        return self._noted(kind, await super().create(kind, namespace, body, is_dry_run=is_dry_run))

    async def apply(
        self,
        kind: Kind,
        namespace: str,
        body: KubeObject,
        *,
        subresource: str = "",
        manager: str = FIELD_MANAGER,
    ) -> KubeObject:
        applied = await super().apply(kind, namespace, body, subresource=subresource, manager=manager)
        return self._noted(kind, applied)

    def _noted(self, kind: Kind, written: KubeObject) -> KubeObject:
        if kind == LEASES:
            self.renewals.append(written["spec"]["holderIdentity"])
        return written


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """SIGTERMs that nobody else handled: they must not end the test run."""
    numbers: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGTERM, before)


def operator(server: FakeServer, session: ClientSession, **changes: Any) -> Operator:
    return Operator(server, Settings(runtime_image=IMAGE, **changes), session, metrics=OperatorMetrics())


async def test_the_lease_is_renewed_while_the_first_resync_of_a_new_leader_is_slow(
    server: FakeServer, heard: list[int]
):
    server.hangs_at = len(WATCHED)  # the look before the Lease goes well
    async with ClientSession() as session:
        running = asyncio.create_task(operator(server, session, lease=("default", "operator")).run())
        await until(lambda: server.is_hanging)
        (holder,) = server.renewals
        await until(lambda: len(server.renewals) >= 2)
        assert server.renewals == [holder] * 2
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, 60)
    assert server.renewals[-1] == ""  # given back
    assert heard == []


async def test_a_leader_that_loses_its_lease_in_its_first_resync_ends(server: FakeServer):
    server.hangs_at = len(WATCHED)
    async with ClientSession() as session:
        running = asyncio.create_task(operator(server, session, lease=("default", "operator")).run())
        await until(lambda: server.is_hanging)
        (lease,) = server.objects(LEASES)
        server.put(LEASES, lease | {"spec": lease["spec"] | {"holderIdentity": "another"}})
        with pytest.raises(errors.KubernetesError, match="another operator has taken the Lease"):
            await asyncio.wait_for(running, 60)


async def test_a_first_resync_that_hangs_does_not_outlive_a_request_to_stop(
    server: FakeServer, heard: list[int]
):
    server.hangs_at = 0
    async with ClientSession() as session:
        running = asyncio.create_task(operator(server, session).run())
        await until(lambda: server.is_hanging)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, 60)
    assert heard == []


async def test_a_namespace_that_may_not_be_listed_is_left_out_and_logged_once(
    server: FakeServer, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    async with ClientSession() as session:
        watching = operator(server, session, namespaces=("lost", "kept"))
        server.forbidden = {(PODS, "lost")}
        await watching.resync()
        await watching.resync()
        assert {kind for kind, namespace in server.lists if namespace == "kept"} == set(WATCHED)
        (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert "namespace lost is left out" in warning and "pods is forbidden" in warning
        server.forbidden = set()
        await watching.resync()
        assert "namespace lost may be listed again" in caplog.messages


async def test_pod_groups_are_listed_where_jobs_may_have_gangs_and_their_absence_stops_nothing(
    server: FakeServer, caplog: pytest.LogCaptureFixture
):
    volcano, kai = (GANG_SCHEDULERS[gang].kind for gang in (Gang.VOLCANO, Gang.KAI))
    server.put(JOBS, a_job())
    async with ClientSession() as session:
        made = operator(server, session, permissions=Permissions(gangs=("Volcano", "KAI")))
        server.forbidden = {(kai, None)}
        await made.resync()
        await made.resync()
        assert {kind for kind, _ in server.lists} == {*WATCHED, volcano, kai}
        unlisted = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert [message.partition(" cannot be listed")[0] for message in unlisted] == [
            "PodGroups of scheduling.volcano.sh/v1beta1",
            "PodGroups of scheduling.run.ai/v2alpha2",
        ]


async def test_workloads_are_listed_where_kueue_is_switched_on_and_their_absence_stops_nothing(
    server: FakeServer, caplog: pytest.LogCaptureFixture
):
    server.put(JOBS, a_job())
    async with ClientSession() as session:
        await operator(server, session).resync()
        assert {kind for kind, _ in server.lists} == set(WATCHED)
        made = operator(server, session, has_kueue=True)
        await made.resync()
        await made.resync()
    assert {kind for kind, _ in server.lists} == {*WATCHED, WORKLOADS}
    (unlisted,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "Workloads cannot be listed" in unlisted


async def test_an_operator_that_may_list_none_of_its_namespaces_says_so(server: FakeServer):
    server.forbidden = {(JOBS, "one"), (PODS, "two")}
    async with ClientSession() as session:
        with pytest.raises(errors.Forbidden, match="namespace one"):
            await operator(server, session, namespaces=("one", "two")).resync()


async def silent_watch(*, stop_flag: asyncio.Event, **_: Any) -> None:
    await stop_flag.wait()


@pytest.fixture
async def working(
    server: FakeServer, heard: list[int], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Operator]:
    """An operator that has looked once and works; kopf's watch tells it nothing, the test does."""
    monkeypatch.setattr(kopf, "operator", silent_watch)
    server.put(JOBS, a_job())
    async with ClientSession() as session:
        made = operator(server, session, resync_seconds=3600)
        running = asyncio.create_task(made.run())
        await until(lambda: len(pod_names(server)) == 3)
        yield made
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, 60)


def engine_uid(server: FakeServer) -> str:
    """Of the pod of replica 1; empty while there is none."""
    found = [pod for pod in server.objects(PODS) if "-rollout-1-" in pod["metadata"]["name"]]
    return str(found[0]["metadata"]["uid"]) if found else ""


async def test_a_watch_event_of_a_deleted_pod_has_its_job_reconciled(server: FakeServer, working: Operator):
    (lost,) = [pod for pod in server.objects(PODS) if "-rollout-1-" in pod["metadata"]["name"]]
    server.remove(PODS, lost["metadata"]["name"])
    working.take_in(PODS, "DELETED", lost)
    await until(lambda: engine_uid(server) not in ("", lost["metadata"]["uid"]))


async def test_a_watch_event_of_a_new_job_has_it_reconciled(server: FakeServer, working: Operator):
    another = a_job()
    another["metadata"] |= {"name": "another", "uid": "another-uid"}
    working.take_in(JOBS, "ADDED", server.put(JOBS, another))
    await until(lambda: len(pod_names(server)) == 6)


def engines(*, since: str, status: str = "False") -> dict[str, Any]:
    """A part of the status of a job that began at noon."""
    condition = {"type": "RolloutReady", "status": status, "lastTransitionTime": since}
    return {"startTime": "2026-11-21T12:00:00Z", "conditions": [condition]}


@pytest.mark.parametrize(
    ("status", "is_collected"),
    [
        ({"phase": "Starting"}, True),
        ({"phase": "Running", **engines(since="2026-11-21T12:00:00Z")}, True),
        ({"phase": "Running", "step": 3, **engines(since="2026-11-21T12:00:00Z")}, True),
        ({"phase": "Running", "step": 3, **engines(since="2026-11-21T12:00:09Z", status="True")}, False),
        ({"phase": "Running", "step": 3, **engines(since="2026-11-21T14:00:00Z")}, False),
        ({"phase": "Restarting", "step": 3, **engines(since="2026-11-21T12:00:00Z")}, False),
        ({"phase": "Running", "step": 3}, False),
        ({"phase": "Running"}, False),
    ],
    ids=[
        "starts",
        "its engines start",
        "it makes steps with some of them",
        "all engines have been admitted",
        "has lost an engine",
        "its trainer is replaced",
        "trains",
        "runs without a step",
    ],
)
async def test_changes_of_pods_are_looked_at_together_only_while_a_job_starts(
    server: FakeServer, status: dict[str, Any], is_collected: bool
):
    job = a_job()
    job["metadata"]["resourceVersion"] = "1"
    async with ClientSession() as session:
        made = operator(server, session)
        added, delayed = list[object](), list[object]()
        made._queue.add = lambda key, urgency=None: added.append(key)  # type: ignore[method-assign]
        made._queue.add_after = lambda key, seconds: delayed.append((key, seconds))  # type: ignore[method-assign]
        made.take_in(JOBS, "ADDED", job | {"status": status})
        made.take_in(PODS, "MODIFIED", a_pod_of(job, version=2))
        made.take_in(PODS, "DELETED", a_pod_of(job, version=3))
    key = ("default", "copy")
    assert delayed == ([(key, 0.5)] if is_collected else [])
    assert added == [key] * (2 if is_collected else 3)


def a_pod_of(job: dict[str, Any], *, version: int) -> dict[str, Any]:
    owner = {"apiVersion": job["apiVersion"], "kind": "GRPOJob", "controller": True}
    owner |= {key: job["metadata"][key] for key in ("name", "uid")}
    meta = {"name": "p", "namespace": "default", "uid": "p", "resourceVersion": str(version)}
    return {"metadata": meta | {"ownerReferences": [owner]}, "spec": {}, "status": {}}


async def test_what_the_watch_missed_is_found_by_the_next_list(server: FakeServer, working: Operator):
    lost = engine_uid(server)
    server.remove(PODS, pod_names(server, "rollout-1")[0])
    await working.resync()
    await until(lambda: engine_uid(server) not in ("", lost))


async def test_a_crd_that_lacks_a_field_is_logged_once_and_followed_when_it_is_replaced(
    server: FakeServer, caplog: pytest.LogCaptureFixture
):
    del server.schema_of_jobs["properties"]["status"]["properties"]["checkpointStep"]
    async with ClientSession() as session:
        made = operator(server, session)
        for _ in range(2):
            await made.resync()
        said = [text for text in caplog.messages if "the GRPOJob CRD is older" in text]
        assert len(said) == 1 and "status.checkpointStep" in said[0]
        server.schema_of_jobs = job_schema()
        await made.resync()
    assert made.served_schema == EVERYTHING


@pytest.mark.parametrize(
    "failure", [errors.ServerFailed("503"), errors.Transient("timed out"), errors.KubernetesError("400")]
)
async def test_a_schema_that_cannot_be_read_is_logged_and_asked_for_again_at_the_next_resync(
    server: FakeServer, caplog: pytest.LogCaptureFixture, failure: errors.KubernetesError
):
    del server.schema_of_jobs["properties"]["status"]["properties"]["checkpointStep"]
    server.schema_failure = failure
    async with ClientSession() as session:
        made = operator(server, session)
        await made.resync()
        assert f"the schema of GRPOJob cannot be read: {failure}" in caplog.messages
        assert made.served_schema == EVERYTHING and {kind for kind, _ in server.lists} == set(WATCHED)
        server.schema_failure = None
        await made.resync()
        known = made.served_schema
        assert "status.checkpointStep" in known.problem
        server.schema_failure = failure
        await made.resync()
        assert made.served_schema == known


async def test_an_operator_leads_its_jobs_although_it_has_never_read_a_schema(
    server: FakeServer, heard: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kopf, "operator", silent_watch)
    server.schema_failure = errors.ServerFailed("openapi is not served")
    server.put(JOBS, a_job())
    async with ClientSession() as session:
        running = asyncio.create_task(operator(server, session, resync_seconds=0.05).run())
        await until(lambda: len(pod_names(server)) == 3 and len(server.lists) > 3 * len(WATCHED))
        assert not running.done()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, 60)
    assert heard == []


async def test_an_operator_whose_cluster_was_restored_from_a_backup_ends(server: FakeServer):
    async with ClientSession() as session:
        made = operator(server, session)
        server.put(JOBS, a_job())
        await made.resync()
        server.restore(version=3)
        with pytest.raises(errors.VersionsWentBack, match="shows version 3 of its state after version"):
            await made.resync()
