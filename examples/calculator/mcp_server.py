"""The same as an MCP server, by a command, or at an address where a port is given: docs/guides/agents.md."""

import ast
import sys

from calculator import value
from mcp.server import MCPServer

server = MCPServer("calculator")


@server.tool()
def calculate(expression: str) -> str:
    """Compute an expression of integers with +, - and *, such as 12*(3+4)."""
    return str(value(ast.parse(expression, mode="eval").body))


if sys.argv[1:]:
    server.run(transport="streamable-http", host="0.0.0.0", port=int(sys.argv[1]))
else:
    server.run(transport="stdio")
