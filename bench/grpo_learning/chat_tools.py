"""The calculator as an environment of tools: a class, a function, and an MCP server, which
`python -m grpo_learning.chat_tools` is, at an address where a port is given."""

import sys

from grpo_learning.chat_agents import compute
from grpo_learning.chat_policy import TEMPLATE

_TOOL = """{{ {'type': 'function', 'function': {'name': tool.function.name, 'parameters': {'type': 'object', \
'properties': {'expression': {'type': tool.function.parameters.properties.expression.type}}}}} | tojson }}"""
BRIEF_TEMPLATE = TEMPLATE.replace("{{ tool | tojson }}", _TOOL).replace(
    "{%- for message in messages %}",
    "{%- for message in messages if not (tools and message.role == 'system') %}",
)
"""That of the policy, whose lessons have a tool without descriptions, for questions that have it too."""


class Calculator:
    """A calculator."""

    def calculator(self, expression: str) -> str:
        """Compute a product.

        Args:
            expression: Two digits with a * between them.
        """
        return compute(expression)


def calculator(expression: str) -> str:
    """Compute a product.

    Args:
        expression: Two digits with a * between them.
    """
    return compute(expression)


def main() -> None:
    """Serve the calculator over standard input and output, or at a port."""
    from mcp.server import MCPServer

    server = MCPServer("calculator")
    server.add_tool(calculator)
    if sys.argv[1:]:
        server.run(transport="streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run(transport="stdio")


if __name__ == "__main__":
    main()
