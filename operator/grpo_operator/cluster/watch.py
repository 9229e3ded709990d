"""The only module that knows kopf. It watches the cluster and passes every event on.

kopf is set up to write nothing: no finalizers, annotations, peering or Events. It does not retry event
handlers and its indexes keep deleted objects, so nothing is decided in a handler.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import kopf

from grpo_operator.cluster.client import Credentials
from grpo_operator.cluster.kinds import WATCHED, Kind, KubeObject

OnEvent = Callable[[Kind, str | None, KubeObject], None]
"""(kind, event type, object): ADDED, MODIFIED, DELETED, or None for the first listing."""


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.watching.inactivity_timeout = 70
    settings.peering.standalone = True
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

    Raises when kopf gives up; that ends the process.
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
    await kopf.operator(
        registry=registry,
        settings=_settings(),
        namespaces=list(namespaces),
        clusterwide=not namespaces,
        stop_flag=stop,
        ready_flag=started,
    )


def _handler(kind: Kind, on_event: OnEvent) -> Any:
    # A coroutine, because kopf calls plain functions in threads and the cache belongs to the event loop.
    async def handle(*, type: str | None, body: kopf.Body, **_: Any) -> None:
        on_event(kind, type, {**body, "kind": kind.name, "apiVersion": kind.api_version})

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
        scheme=scheme or None,
        token=token or None,
    )
