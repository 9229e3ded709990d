"""The operator's process, on a fake API server: its first look, its Lease, and namespaces it may not list."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiohttp import ClientSession

from grpo_operator import errors
from grpo_operator.client import Client, Listing
from grpo_operator.kinds import JOBS, PODS, WATCHED, Kind, Manifest
from grpo_operator.run import Operator
from grpo_operator.settings import Settings

from .fake_world import IMAGE


class FakeServer(Client):
    """Lists nothing and keeps one Lease. `forbidden` are the (kind, namespace) it does not list, `hangs_at`
    the number of the list that never comes back."""

    def __init__(self) -> None:
        self.forbidden: set[tuple[Kind, str]] = set()
        self.hangs_at: int | None = None
        self.lists: list[tuple[Kind, str | None]] = []
        self.lease: Manifest | None = None
        self.renewals: list[str] = []

    @property
    def is_hanging(self) -> bool:
        return self.hangs_at is not None and len(self.lists) > self.hangs_at

    async def list(self, kind: Kind, namespace: str | None, *, fields: str = "") -> Listing:
        self.lists.append((kind, namespace))
        if self.is_hanging:
            await asyncio.Event().wait()
        if (kind, namespace) in self.forbidden:
            raise errors.Forbidden(f"{kind.plural} is forbidden in the namespace {namespace}")
        return Listing(items=(), resource_version=1)

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
        if self.lease is None:
            raise errors.NotFound(f"leases {name} not found")
        return self.lease

    async def create(
        self, kind: Kind, namespace: str, body: Manifest, *, is_dry_run: bool = False
    ) -> Manifest:
        return self._store(body)

    async def apply(self, kind: Kind, namespace: str, body: Manifest, *, subresource: str = "") -> Manifest:
        return self._store(body)

    def _store(self, body: Manifest) -> Manifest:
        self.renewals.append(body["spec"]["holderIdentity"])
        self.lease = {**body, "metadata": body["metadata"] | {"resourceVersion": str(len(self.renewals))}}
        return self.lease


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
    return Operator(server, Settings(runtime_image=IMAGE, **changes), session)


async def until(check: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not check():  # noqa: ASYNC110 - any state of the fake may be waited for
            await asyncio.sleep(0.01)


async def test_the_lease_is_renewed_while_the_first_look_of_a_new_leader_is_slow(
    server: FakeServer, heard: list[int]
):
    server.hangs_at = len(WATCHED)  # the look before the Lease goes well
    async with ClientSession() as session:
        running = asyncio.create_task(operator(server, session, lease=("here", "operator")).run())
        await until(lambda: server.is_hanging)
        (holder,) = server.renewals
        await until(lambda: len(server.renewals) >= 2)
        assert server.renewals == [holder] * 2
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, 5)
    assert server.renewals[-1] == ""  # given back
    assert heard == []


async def test_a_leader_that_loses_its_lease_in_its_first_look_ends(server: FakeServer):
    server.hangs_at = len(WATCHED)
    async with ClientSession() as session:
        running = asyncio.create_task(operator(server, session, lease=("here", "operator")).run())
        await until(lambda: server.is_hanging)
        assert server.lease is not None
        server.lease["spec"]["holderIdentity"] = "another"
        with pytest.raises(errors.KubernetesError, match="another operator has taken the Lease"):
            await asyncio.wait_for(running, 10)


async def test_a_first_look_that_hangs_does_not_outlive_a_request_to_stop(
    server: FakeServer, heard: list[int]
):
    server.hangs_at = 0
    async with ClientSession() as session:
        running = asyncio.create_task(operator(server, session).run())
        await until(lambda: server.is_hanging)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, 5)
    assert heard == []


async def test_a_namespace_that_may_not_be_listed_is_left_out_and_said_once(
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


async def test_an_operator_that_may_list_none_of_its_namespaces_says_so(server: FakeServer):
    server.forbidden = {(JOBS, "one"), (PODS, "two")}
    async with ClientSession() as session:
        with pytest.raises(errors.Forbidden, match="namespace one"):
            await operator(server, session, namespaces=("one", "two")).resync()
