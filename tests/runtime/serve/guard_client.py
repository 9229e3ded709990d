"""Calls to the guard of one engine process, without a server."""

import json
from dataclasses import dataclass
from typing import Any

from fake_vllm import FakeVLLM, call_asgi

from grpo_runtime.serve.guard import Guard


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
        headers = []
        for name, value in (
            ("authorization", token and f"{scheme} {token}"),
            ("x-grpo-attempt", attempt),
            ("x-grpo-instance", instance),
        ):
            if value is not None:
                headers.append((name.encode(), str(value).encode()))
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        length = -(-len(content) // num_parts)
        parts = [content[length * index :][:length] for index in range(num_parts)]
        return await call_asgi(
            self.guard, self.vllm, method=method, path=path, query=b"", headers=headers, parts=parts
        )
