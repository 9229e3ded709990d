"""The calculator's task by a program as its user wrote it, with openai's plain client."""

import json
import re
import sys
from typing import Any

from openai import OpenAI

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "calculator",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}


def calculate(arguments: str) -> str:
    """A product of two digits; a question mark for all else."""
    try:
        factors = re.fullmatch(r"(\d)\*(\d)", str(json.loads(arguments)["expression"]))
    except (ValueError, LookupError, TypeError):
        factors = None
    return str(int(factors[1]) * int(factors[2])) if factors else "?"


def main() -> None:
    """Play the episode of the task on standard input."""
    client = OpenAI()
    messages: list[Any] = json.load(sys.stdin)["prompt"][-1:]
    answer = client.chat.completions.create(model="policy", messages=messages, tools=[TOOL])
    message = answer.choices[0].message
    if not message.tool_calls:
        return
    results: list[Any] = [
        {"role": "tool", "tool_call_id": call.id, "content": calculate(call.function.arguments)}
        for call in message.tool_calls
        if call.type == "function"
    ]
    messages += [message, *results]
    client.chat.completions.create(model="policy", messages=messages, tools=[TOOL])


if __name__ == "__main__":
    main()
