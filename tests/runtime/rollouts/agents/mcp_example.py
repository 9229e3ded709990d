"""An MCP server of the tests, over standard input and output, or over HTTP where a port is given."""

import os
import subprocess
import sys
import threading

import uvicorn
from mcp import MCPError
from mcp.server import MCPServer
from mcp_types import INVALID_PARAMS
from starlette.types import ASGIApp, Receive, Scope, Send

server = MCPServer("example")


@server.tool()
def plus(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def fails() -> str:
    """Does not work."""
    raise OSError("the index is away")


@server.tool()
def refuses() -> str:
    """Fails by an error of the protocol."""
    raise MCPError(code=INVALID_PARAMS, message="no such page")


@server.tool()
def processes() -> str:
    """The ids of this process and of one that it starts."""
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    return f"{os.getpid()} {child.pid}"


@server.tool()
def dies() -> str:
    """Ends the server."""
    os.write(2, b"the disk is full\n")
    os._exit(3)


@server.tool()
async def hangs() -> str:
    """Never answers, and blocks all others."""
    threading.Event().wait()
    return ""


def with_sessions(app: ASGIApp) -> ASGIApp:
    """The server as it was before 2026: it does not know the versions of the protocol without sessions."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = [header for header in scope["headers"] if header[0] != b"mcp-protocol-version"]
            scope = {**scope, "headers": headers}
        await app(scope, receive, send)

    return serve


if __name__ == "__main__":
    sys.stderr.write("the index is read\n")
    sys.stderr.flush()
    if sys.argv[2:] == ["with-sessions"]:
        app = with_sessions(server.streamable_http_app())
        uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
    elif len(sys.argv) > 1:
        server.run(transport="streamable-http", port=int(sys.argv[1]))
    else:
        server.run(transport="stdio")
