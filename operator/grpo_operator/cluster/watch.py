"""The only module that knows kopf. It watches the cluster and passes every event on.

kopf is set up to write nothing: no finalizers, annotations, peering or Events. It does not retry event
handlers and its indexes keep deleted objects, so nothing is decided in a handler.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import AsyncGeneratorType
from typing import Any
from weakref import WeakKeyDictionary

import kopf

from grpo_operator.cluster.configuration import Credentials
from grpo_operator.cluster.kinds import WATCHED, Kind, KubeObject

OnEvent = Callable[[Kind, str | None, KubeObject], None]
"""(kind, event type, object): ADDED, MODIFIED, DELETED, or None for the first listing."""


class _NoDiffs(kopf.DiffBaseStorage):
    """kopf compares each object with what it was before. We have no handler of changes, and the comparison
    copies the object three times."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        raise NotImplementedError("nothing is written on an object")


class _NoHandlerProgress(kopf.ProgressStorage):
    """kopf keeps the progress of its handlers of changes, of which we have none."""

    def fetch(self, **_: Any) -> Any:
        return None

    def clear(self, *, essence: Any) -> Any:
        return essence

    def store(self, **_: Any) -> None:
        raise NotImplementedError("nothing is written on an object")

    def purge(self, **_: Any) -> None:
        """There is nothing to remove."""

    def touch(self, **_: Any) -> None:
        raise NotImplementedError("nothing is written on an object")


def kopf_settings() -> kopf.OperatorSettings:
    """The settings of kopf: to watch, and to write nothing."""
    settings = kopf.OperatorSettings()
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.persistence.progress_storage = _NoHandlerProgress()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.watching.inactivity_timeout = 70
    settings.peering.standalone = True
    # Of the task that kopf has for each object, which holds its last event. With the default of 5 s there are
    # thousands while many jobs start.
    settings.queueing.idle_timeout = 0.1
    for kind in WATCHED:
        if kind.selector:
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = kind.selector
    return settings


async def watch(
    *,
    namespaces: tuple[str, ...],
    credentials: Callable[[], Awaitable[Credentials]],
    on_event: OnEvent,
    stop: asyncio.Event,
    started: asyncio.Event,
) -> None:
    """Watch until `stop` is set. `started` is set once kopf has installed its signal handlers.

    Raises when kopf stops; that ends the process.
    """
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return _connection(await credentials())

    for kind in WATCHED:
        kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id="enqueue")(
            _handler(kind, on_event)
        )
    logging.getLogger("kopf").setLevel(logging.WARNING)
    async with _generators_closed_in_order():
        await kopf.operator(
            registry=registry,
            settings=kopf_settings(),
            namespaces=list(namespaces),
            clusterwide=not namespaces,
            stop_flag=stop,
            ready_flag=started,
        )


@asynccontextmanager
async def _generators_closed_in_order() -> AsyncIterator[None]:
    """Close the generators that kopf leaves open when it stops, each before those that it uses. asyncio would
    close them all at once at the end of the process: one whose inner one is closed by then fails and logs a
    traceback."""
    opened: WeakKeyDictionary[AsyncGenerator[Any, Any], None] = WeakKeyDictionary()
    of_the_loop = sys.get_asyncgen_hooks().firstiter

    def remember(generator: AsyncGenerator[Any, Any]) -> None:
        if isinstance(generator, AsyncGeneratorType) and _is_of_kopf(generator):
            opened[generator] = None
        if of_the_loop is not None:
            of_the_loop(generator)

    sys.set_asyncgen_hooks(firstiter=remember)
    try:
        yield
    finally:
        sys.set_asyncgen_hooks(firstiter=of_the_loop)
        for generator in list(opened):  # the outer one is the first to be iterated
            await generator.aclose()


def _is_of_kopf(generator: AsyncGeneratorType[Any, Any]) -> bool:
    return generator.ag_code.co_filename.startswith(kopf.__path__[0])


def _handler(kind: Kind, on_event: OnEvent) -> Any:
    # A coroutine, because kopf calls plain functions in threads and the cache belongs to the event loop.
    async def handle(*, event: kopf.RawEvent, **_: Any) -> None:
        item = {**event["object"], "kind": kind.name, "apiVersion": kind.api_version}
        on_event(kind, event["type"], item)

    return handle


def _connection(found: Credentials) -> kopf.ConnectionInfo:
    scheme, _, token = (found.authorization or "").partition(" ")
    return kopf.ConnectionInfo(
        server=found.server,
        ca_path=found.ca_path,
        ca_data=found.ca_data,
        insecure=found.is_insecure,
        certificate_path=found.certificate_path,
        private_key_path=found.private_key_path,
        proxy_url=found.proxy,
        scheme=scheme or None,
        token=token or None,
    )
