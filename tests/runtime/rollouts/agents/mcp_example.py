"""An MCP server of the tests, over standard input and output, or over HTTP where a port is given."""

import os
import subprocess
import sys
import threading

from mcp.server import MCPServer

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


if __name__ == "__main__":
    sys.stderr.write("the index is read\n")
    sys.stderr.flush()
    if len(sys.argv) > 1:
        server.run(transport="streamable-http", port=int(sys.argv[1]))
    else:
        server.run(transport="stdio")
