"""Requests to the API server as the administrator, which the API server does not hold back."""

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import aiohttp

from grpo_cluster.certificates import ADMIN, KeyFolder
from grpo_cluster.settings import ClusterError, ClusterSettings

Object = dict[str, Any]


class Requests:
    """One session for all requests of the bench."""

    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        self._session = session
        self._server = server

    @classmethod
    @asynccontextmanager
    async def to(cls, settings: ClusterSettings) -> AsyncIterator[Self]:
        """Requests to this cluster."""
        keys = KeyFolder(settings.keys)
        tls = ssl.create_default_context(cafile=str(keys.authority))
        tls.load_cert_chain(keys.certificate(ADMIN), keys.key(ADMIN))
        connector = aiohttp.TCPConnector(ssl=tls, limit=64)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=2**22) as session:
            yield cls(session, settings.api_url)

    async def send(
        self, method: str, path: str, body: Object | None = None, *, content_type: str = "application/json"
    ) -> Object:
        """The answer as JSON. Raises ClusterError when it is a refusal."""
        return json.loads(await self._send(method, path, body, content_type=content_type))

    async def metrics(self) -> str:
        """What the API server measures about itself, in Prometheus' text format."""
        return await self._send("GET", "/metrics", None)

    async def watch(self, path: str) -> AsyncIterator[tuple[str, Object]]:
        """(type, object) of everything there is and of every change after it. A stream that the API server
        ends is taken up where it ended. Raises ClusterError when that is no longer possible."""
        version = ""
        while True:
            query = f"watch=true&allowWatchBookmarks=true&resourceVersion={version}"
            async with self._session.get(f"{self._server}{path}?{query}") as response:
                async for line in response.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise ClusterError(f"the watch of {path}: {event['object']}: run the command again")
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        yield event["type"], event["object"]

    async def _send(
        self, method: str, path: str, body: Object | None, *, content_type: str = "application/json"
    ) -> str:
        headers = {"Content-Type": content_type}
        async with self._session.request(
            method, f"{self._server}{path}", data=json.dumps(body) if body else None, headers=headers
        ) as response:
            text = await response.text()
            if response.status >= 400:
                raise ClusterError(f"{method} {path}: {response.status}: {text[:500]}")
            return text
