"""Serves the gateway in the thread of the rollouts."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp

LOCALHOST = "127.0.0.1"
_BACKLOG = 4096
"""Calls that may wait for their turn to be accepted: all agents of a step begin at once."""
_CLOSING_SECONDS = 5


@asynccontextmanager
async def served(app: ASGIApp, *, host: str = LOCALHOST) -> AsyncIterator[str]:
    """Serve the application at a free port of `host`, in the running loop; gives its URL."""
    listener = listening(host)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=_CLOSING_SECONDS,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://{host}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        listener.close()


def listening(host: str) -> socket.socket:
    """Listens at a free port. Its connections send what is written at once: an answer is written in two
    parts, and the second would wait for some 40 ms until the client confirms the first. asyncio sees to that
    only for sockets that name their protocol, which these do not."""
    listener = socket.create_server((host, 0), backlog=_BACKLOG)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
    return listener
