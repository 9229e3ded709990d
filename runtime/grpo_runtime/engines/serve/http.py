"""HTTP helpers of the guard: requests and answers of plain ASGI."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from grpo_runtime.rollouts.frames import Frame, encode_frames

MAX_BODY_BYTES = 64 * 1024


class BadRequestError(Exception):
    """The request cannot be understood; the message says why."""


def header(scope: Scope, name: str) -> str | None:
    """The first value of a header (`name` in lower case), or None."""
    wanted = name.encode("latin-1")
    for key, value in scope["headers"]:
        if key == wanted:
            return bytes(value).decode("latin-1")
    return None


def bearer_token(scope: Scope) -> str:
    """The token of an `Authorization: Bearer` header; empty without one."""
    scheme, _, token = (header(scope, "authorization") or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


async def read_body(receive: Receive, *, max_bytes: int) -> bytes:
    """The request body."""
    body = bytearray()
    while True:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            raise BadRequestError("the caller closed the connection")
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise BadRequestError(f"the body is longer than {max_bytes} bytes")
        if not message.get("more_body", False):
            return bytes(body)


async def read_json(receive: Receive, *, max_bytes: int = MAX_BODY_BYTES) -> Mapping[str, Any]:
    """The request body as a JSON object."""
    try:
        parsed = json.loads(await read_body(receive, max_bytes=max_bytes))
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise BadRequestError("the body must be a JSON object")
    return parsed


async def send_json(send: Send, status: int, content: Mapping[str, Any]) -> None:
    """Answer with a JSON object."""
    await _send(send, status, json.dumps(content).encode(), content_type=b"application/json")


async def send_frames(send: Send, frames: Iterable[Frame]) -> None:
    """Answer with frames."""
    await _send(send, 200, encode_frames(frames), content_type=b"application/octet-stream")


async def send_error(send: Send, status: int, sentence: str) -> None:
    """Answer with an error and a sentence that says what to do."""
    await send_json(send, status, {"error": {"message": sentence, "code": status}})


async def _send(send: Send, status: int, body: bytes, *, content_type: bytes) -> None:
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
