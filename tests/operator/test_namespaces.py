"""Namespaces whose labels do not match are left out, and come in when they do."""

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import ClientSession

from grpo_operator.cluster import errors
from grpo_operator.cluster.client import Listing
from grpo_operator.cluster.kinds import JOBS, PODS, Kind, KubeObject
from grpo_operator.metrics import OperatorMetrics
from grpo_operator.observe.cache import Cache, Key
from grpo_operator.observe.namespaces import NamespaceFilter
from grpo_operator.operator import Operator
from grpo_operator.settings import Settings

from .controlled_job import KEY, a_job
from .fake_api_server import FakeApiServer
from .fake_cluster import IMAGE
from .until import until

SELECTOR = "grpo.dev/ignored!=true"


class FakeLabels:
    """Serves the names of the namespaces that match. `said` is what a watch of them then says."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.said: asyncio.Queue[tuple[str, str] | Exception] = asyncio.Queue()
        self.selectors: list[str] = []

    async def list(self, kind: Kind, namespace: str | None, **more: Any) -> Listing[Any]:
        assert (kind.path(namespace), namespace) == ("/api/v1/namespaces", None)
        self.selectors.append(kind.selector)
        return Listing(items=tuple(more["keep"](named(name)) for name in self.names), resource_version=7)

    async def follow(
        self, kind: Kind, namespace: str | None, *, since: int
    ) -> AsyncIterator[tuple[str, KubeObject]]:
        assert (kind.selector, since) == (SELECTOR, 7)
        while True:
            said = await self.said.get()
            if isinstance(said, Exception):
                raise said
            yield said[0], named(said[1])


def named(name: str) -> KubeObject:
    return {"metadata": {"name": name}}


def cache_of(*keys: Key) -> Cache:
    """Jobs of these names, each with a pod that waits."""
    cache = Cache()
    for namespace, name in keys:
        meta = {"namespace": namespace, "name": name, "uid": f"{namespace}-{name}", "resourceVersion": "1"}
        cache.put(JOBS, {"metadata": meta, "status": {"phase": "Pending"}})
        owner = {"apiVersion": "grpo.dev/v1alpha1", "kind": "GRPOJob", "controller": True}
        owners = [{**owner, "name": name, "uid": meta["uid"]}]
        pod = meta | {"uid": f"pod-{meta['uid']}", "ownerReferences": owners}
        cache.put(PODS, {"metadata": pod, "status": {"phase": "Pending"}})
    return cache


A, B = ("team-a", "copy"), ("team-b", "copy")


async def test_jobs_of_a_namespace_that_does_not_match_are_not_shown_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO)
    cache = cache_of(A, B)
    namespaces = NamespaceFilter(FakeLabels("team-a"), cache, SELECTOR, wake=lambda key: None)
    for _ in range(3):
        await namespaces.look()
    assert (cache.job_keys(), cache.job(B), cache.job_phases()) == ((A,), None, ("Pending",))
    assert cache.job(A) is not None
    assert [pod["metadata"]["namespace"] for pod in cache.pending_pods()] == ["team-a"]
    assert [record.getMessage() for record in caplog.records] == [
        f"namespace team-b is left out: its labels do not match {SELECTOR}, and its GRPOJobs stay as they are"
    ]


async def test_a_change_of_the_label_is_followed_also_after_the_watch_has_ended(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO)
    cache, woken, labels = cache_of(A, B), list[Key](), FakeLabels("team-a")
    namespaces = NamespaceFilter(labels, cache, SELECTOR, wake=woken.append)
    assert cache.job_keys() == ()
    await namespaces.look()
    assert woken.pop() == A
    following = asyncio.create_task(namespaces.run())
    labels.said.put_nowait(("ADDED", "team-b"))
    await until(lambda: woken == [B])
    labels.said.put_nowait(("DELETED", "team-a"))
    await until(lambda: cache.job_keys() == (B,))
    labels.said.put_nowait(("MODIFIED", "team-b"))
    labels.names = ("team-a", "team-b")
    labels.said.put_nowait(errors.Transient("the version is too old"))
    following.cancel()
    await namespaces.look()
    assert (woken, set(cache.job_keys())) == ([B, A], {A, B})
    assert set(labels.selectors) == {SELECTOR}
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert [line.split(":")[0] for line in said] == [
        "namespace team-b is left out",
        "namespace team-b is no longer left out",
        "namespace team-a is left out",
        "namespace team-a is no longer left out",
    ]


class LabelledServer(FakeApiServer):
    """Its one namespace matches or not."""

    def __init__(self, labels: FakeLabels) -> None:
        super().__init__(clock=lambda: datetime.now(UTC))
        self._labels = labels

    async def list(self, kind: Kind, namespace: str | None, **more: Any) -> Listing[Any]:
        listed = self._labels if kind.plural == "namespaces" else super()
        return await listed.list(kind, namespace, **more)


@pytest.mark.parametrize("is_matching", [True, False])
async def test_an_operator_writes_nothing_about_a_job_of_a_namespace_that_is_left_out(*, is_matching: bool):
    server = LabelledServer(FakeLabels(*([KEY[0]] if is_matching else [])))
    server.put(JOBS, a_job())
    before = server.num_writes
    async with ClientSession() as session:
        settings = Settings(runtime_image=IMAGE, namespace_selector=SELECTOR)
        operator = Operator(server, settings, session, metrics=OperatorMetrics())
        await operator._first_resync()
        working = asyncio.create_task(operator._queue.run(num_workers=1, num_starting=1))
        await until(lambda: operator._queue.num_waiting == 0)
        await until(lambda: not operator._queue._busy)
        working.cancel()
    assert (server.num_writes > before) is is_matching
