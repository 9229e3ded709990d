"""Calls to the guard of one engine process, without a server."""

import asyncio
import json
from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from fake_vllm import FakeVLLM, call_asgi, call_asgi_for_bytes

from grpo_runtime.engines.serve.guard import Guard
from grpo_runtime.rollouts.frames import Frame, read_frames

Headers = list[tuple[bytes, bytes]]


@dataclass
class GuardClient:
    """One engine process: a guard, vLLM behind it, and a way to call it."""

    guard: Guard
    vllm: FakeVLLM

    async def call(
        self,
        method: str,
        path: str,
        *,
        token: str | None = None,
        scheme: str = "Bearer",
        attempt: int | str | None = None,
        instance: str | None = None,
        body: Any = None,
        num_parts: int = 1,
    ) -> tuple[int, dict[str, Any]]:
        """Status and JSON of one request, whose body comes in `num_parts`."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        length = -(-len(content) // num_parts)
        parts = [content[length * index :][:length] for index in range(num_parts)]
        return await call_asgi(
            self.guard,
            self.vllm,
            method=method,
            path=path,
            query=b"",
            headers=_headers(token and f"{scheme} {token}", attempt=attempt, instance=instance),
            parts=parts,
        )

    async def call_for_frames(
        self, path: str, *, token: str, body: bytes, attempt: int | None = None
    ) -> list[Frame]:
        """What is answered to a POST that is not refused."""
        status, answer = await call_asgi_for_bytes(
            self.guard,
            self.vllm,
            method="POST",
            path=path,
            query=b"",
            headers=_headers(f"Bearer {token}", attempt=attempt),
            parts=[body],
        )
        assert status == 200, answer
        return read_frames(answer)

    async def call_and_leave(self, path: str, *, token: str, body: bytes, when: asyncio.Event) -> list[Any]:
        """What is sent to a caller that closes its connection `when` it has waited long enough."""
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "headers": _headers(f"Bearer {token}"),
            "app": SimpleNamespace(state=SimpleNamespace(engine_client=self.vllm)),
        }
        messages = deque([{"type": "http.request", "body": body, "more_body": False}])
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.popleft()
            await when.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.guard(scope, receive, send)
        return sent


def _headers(
    authorization: str | None, *, attempt: int | str | None = None, instance: str | None = None
) -> Headers:
    given = {"authorization": authorization, "x-grpo-attempt": attempt, "x-grpo-instance": instance}
    return [(name.encode(), str(value).encode()) for name, value in given.items() if value is not None]
