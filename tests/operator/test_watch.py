"""What kopf does with our handlers."""

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import kopf
import pytest

from grpo_operator.cluster import watch
from grpo_operator.cluster.configuration import Credentials
from grpo_operator.cluster.kinds import PODS, WATCHED, KubeObject

RESOURCE = kopf._cogs.structs.references.Resource("", "v1", PODS.plural, namespaced=True)
HERE = Credentials("http://127.0.0.1:1", None, None, True, None, None, None, None)


async def here() -> Credentials:
    return HERE


async def test_the_watch_goes_through_the_same_proxy_as_every_request(monkeypatch: pytest.MonkeyPatch):
    logged_in: list[kopf.ConnectionInfo] = []

    async def log_in(*, registry: kopf.OperatorRegistry, **_: Any) -> None:
        """Stands for kopf's first step."""
        for handler in registry._activities.get_all_handlers():
            logged_in.append(await handler.fn())

    monkeypatch.setattr(kopf, "operator", log_in)

    async def behind_a_proxy() -> Credentials:
        return replace(HERE, proxy="http://proxy.example.test:3128")

    await watch.watch(
        namespaces=("default",),
        credentials=behind_a_proxy,
        on_event=lambda kind, event, item: None,
        stop=asyncio.Event(),
        started=asyncio.Event(),
    )
    assert [found.proxy_url for found in logged_in] == ["http://proxy.example.test:3128"]


async def test_watch_events_are_taken_in_on_the_event_loop_and_not_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
):
    taken_in: list[tuple[str, int]] = []

    async def one_event(*, registry: kopf.OperatorRegistry, **_: Any) -> None:
        """Stands for kopf's watching, and calls the handlers as kopf does."""
        for handler in registry._watching.get_all_handlers():
            cause = SimpleNamespace(kwargs={}, sync_kwargs={}, async_kwargs={})
            kwargs = {"event": {"type": "ADDED", "object": {"metadata": {"name": "p"}}}}
            await kopf._core.actions.invocation.invoke(handler.fn, kwargsrc=cause, kwargs=kwargs)

    monkeypatch.setattr(kopf, "operator", one_event)

    await watch.watch(
        namespaces=("default",),
        credentials=here,
        on_event=lambda kind, event, item: taken_in.append((item["kind"], threading.get_ident())),
        stop=asyncio.Event(),
        started=asyncio.Event(),
    )
    assert {kind for kind, _ in taken_in} == {kind.name for kind in WATCHED}
    assert {thread for _, thread in taken_in} == {threading.get_ident()}


def test_what_kopf_leaves_open_is_closed_before_the_process_ends_and_logs_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    left_open: list[Any] = []

    async def stopped_between_two_events(**_: Any) -> None:
        """Stands for kopf, whose watches are cancelled while they hand an event on."""
        watched = kopf._core.reactor.queueing.watching.infinite_watch(
            settings=watch.kopf_settings(), resource=RESOURCE, namespace="default"
        )
        left_open.append(watched)
        await anext(watched)

    async def one_event(**_: Any) -> AsyncIterator[dict[str, Any]]:
        yield {"type": "ADDED", "object": {"metadata": {"name": "p"}}}

    monkeypatch.setattr(kopf, "operator", stopped_between_two_events)
    monkeypatch.setattr(kopf._cogs.clients.watching, "continuous_watch", one_event)
    asyncio.run(
        watch.watch(
            namespaces=("default",),
            credentials=here,
            on_event=lambda kind, event, item: None,
            stop=asyncio.Event(),
            started=asyncio.Event(),
        )
    )
    assert (left_open[0].ag_frame, caplog.messages) == (None, [])


class NeverCopied(dict[str, Any]):
    """A part of an object that fails the test when somebody copies it."""

    def __deepcopy__(self, memo: object) -> "NeverCopied":
        raise AssertionError("kopf copies every object to compare it with what it was")


async def test_kopf_neither_compares_nor_copies_an_object():
    seen: list[KubeObject] = []

    async def handle(*, body: kopf.Body, **_: Any) -> None:
        seen.append(dict(body))

    registry = kopf.OperatorRegistry()
    kopf.on.event("", "v1", "pods", registry=registry)(handle)
    pod = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": NeverCopied(nodeName="a")}
    await kopf._core.reactor.processing.process_resource_event(
        lifecycle=kopf.lifecycles.all_at_once,
        indexers=kopf._core.engines.indexing.OperatorIndexers(),
        registry=registry,
        settings=watch.kopf_settings(),
        memories=kopf._core.reactor.inventory.ResourceMemories(),
        memobase=kopf._cogs.structs.ephemera.Memo(),
        resource=RESOURCE,
        raw_event={"type": "MODIFIED", "object": pod},
        event_queue=asyncio.Queue(),
    )
    assert [item["spec"]["nodeName"] for item in seen] == ["a"]


def test_lists_come_in_one_piece_and_before_the_watch():
    """kopf ends the process when a continue token has expired, and loses objects of a first list that is
    streamed."""
    watching = watch.kopf_settings().watching
    assert (watching.chunk_size, watching.initial_streaming) == (None, False)
