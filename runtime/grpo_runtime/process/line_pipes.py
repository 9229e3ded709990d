"""The pipes of a process that answers lines, and its first word: see `line_worker`, which starts it.

The user's code may print and read: its stdout is the process's stderr, and its stdin is empty. An event loop
reads the requests, so what the user's code has left running there goes on while the process waits for one.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO, TypeVar

from grpo_runtime.errors import UserError

T = TypeVar("T")
MAX_REASON_CHARACTERS = 2000
"""The reason of a failure is cut to this length."""


async def private_pipes() -> tuple[asyncio.StreamReader, TextIO]:
    """Move the protocol's pipes away from file descriptors 0 and 1, which any library may use. The running
    event loop reads the requests."""
    # a request may be as long as it is
    requests = asyncio.StreamReader(limit=sys.maxsize)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(requests), os.fdopen(os.dup(0), "rb", buffering=0)
    )
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, replies


def announce(replies: TextIO, load: Callable[[], T]) -> T | None:
    """What `load` returns, once the parent is told that it is there; or None, once it is told why not."""
    try:
        found = load()
    except UserError as error:
        send(replies, {"user_error": str(error)})
        return None
    send(replies, {"ready": True})
    return found


def send(replies: TextIO, message: dict[str, Any]) -> None:
    """Write one line."""
    replies.write(json.dumps(message) + "\n")
    replies.flush()


def failure(error: BaseException, *, trace: str) -> dict[str, Any]:
    """The reply when the user's code has raised."""
    sentence = f"{type(error).__name__}: {error}"[:MAX_REASON_CHARACTERS]
    return {"error": sentence, "traceback": trace[-MAX_REASON_CHARACTERS:]}
