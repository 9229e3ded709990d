"""Connections to engines. They are used again, because a weight sync is many short calls."""

import aiohttp
from aiohttp.connector import Connection

REUSE_SECONDS = 1.0
"""For how long an idle connection may be used again. vLLM's server closes one after 5 s, and a call that
meets a closed one fails. The time between is for a server that is busy, and closes it before it reads."""


def open_session() -> aiohttp.ClientSession:
    """A session for calls to engines, with as many connections as there are calls at a time."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=REUSE_SECONDS)
    return aiohttp.ClientSession(connector=connector, response_class=EngineResponse)


class EngineResponse(aiohttp.ClientResponse):
    """An answer of an engine. After an internal error its connection is not used again: vLLM's server closes
    it without saying so."""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """Read status and headers."""
        protocol = connection.protocol
        await super().start(connection)
        if self.status >= 500 and protocol is not None:
            if self.connection is None:
                # all of it was there, so that the next call might have taken the connection already
                protocol.close()
            else:
                protocol.force_close()
        return self
