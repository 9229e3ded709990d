"""The kinds of environments that are compared. This is the only list of them."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

COROUTINE = "coroutine"
"""What the others are compared with."""
_SERVER = [sys.executable, "-m", "grpo_learning.chat_tools"]


def kinds(port: int) -> Mapping[str, Mapping[str, Any]]:
    """Name -> the fields of `environments[]`, but for its name. An MCP server listens at this port."""
    return {
        COROUTINE: {"function": "grpo_turns.agents:asks"},
        "tools: a class": {"tools": {"function": "grpo_learning.chat_tools:Calculator"}},
        "tools: functions": {"tools": {"function": "grpo_learning.chat_tools:calculator"}},
        "tools: an MCP server by command": _server(command=_SERVER),
        "tools: an MCP server at an address": _server(url=f"http://127.0.0.1:{port}/mcp"),
        "command": {"command": [sys.executable, str(Path(__file__).with_name("program.py"))]},
    }


def server_at(port: int) -> list[str]:
    """The command of the server at an address."""
    return [*_SERVER, f"{port}"]


def job_of(port: int) -> dict[str, Any]:
    """A GRPOJob with all of them."""
    return {
        "apiVersion": "grpo.dev/v1alpha1",
        "kind": "GRPOJob",
        "metadata": {"name": "turns"},
        "spec": {
            "model": {"source": "builtin://tiny"},
            "dataset": {"source": "file:///questions.jsonl"},
            "rewards": [{"name": "earned", "builtin": "environment"}],
            "environments": [
                {"name": f"kind-{number}", **fields} for number, fields in enumerate(kinds(port).values())
            ],
            "algorithm": {"steps": 1, "promptsPerStep": 1, "groupSize": 2},
            "sampling": {"maxTokens": 128, "toolCallParser": "hermes"},
            "engine": {"maxModelLen": 8192, "kvCacheMemory": "64Mi"},
        },
    }


def _server(**place: Any) -> dict[str, Any]:
    return {"tools": {"mcpServers": [{"name": "calculator", **place}]}}
