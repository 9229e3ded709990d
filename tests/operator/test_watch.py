"""What kopf does with our handlers."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import kopf
import pytest

from grpo_operator.cluster import watch
from grpo_operator.cluster.client import Credentials
from grpo_operator.cluster.kinds import WATCHED

HERE = Credentials("http://127.0.0.1:1", None, None, True, None, None, None)


async def test_watch_events_are_taken_in_on_the_event_loop_and_not_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
):
    taken_in: list[tuple[str, int]] = []

    async def one_event(*, registry: kopf.OperatorRegistry, **_: Any) -> None:
        """Stands for kopf's watching, and calls the handlers as kopf does."""
        for handler in registry._watching.get_all_handlers():
            cause = SimpleNamespace(kwargs={}, sync_kwargs={}, async_kwargs={})
            kwargs = {"type": "ADDED", "body": {"metadata": {"name": "p"}}}
            await kopf._core.actions.invocation.invoke(handler.fn, kwargsrc=cause, kwargs=kwargs)

    monkeypatch.setattr(kopf, "operator", one_event)

    async def credentials() -> Credentials:
        return HERE

    await watch.watch(
        namespaces=("default",),
        credentials=credentials,
        on_event=lambda kind, event, item: taken_in.append((item["kind"], threading.get_ident())),
        stop=asyncio.Event(),
        started=asyncio.Event(),
    )
    assert {kind for kind, _ in taken_in} == {kind.name for kind in WATCHED}
    assert {thread for _, thread in taken_in} == {threading.get_ident()}
