"""Calls to the guard without a server, and an engine that is only a few flags."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from starlette.types import Receive, Scope, Send

from grpo_api.contract.environment import Env, Role
from grpo_runtime.serve.guard import Guard

DATA, ADMIN = "data-secret", "admin-secret"


@dataclass
class FakeEngine:
    """The two things the guard asks of vLLM's engine client."""

    errored: bool = False
    weight_version: str = "default"

    async def get_weight_version(self) -> str:
        return self.weight_version


@dataclass
class FakeVLLM:
    """The application behind the guard: notes what got through."""

    reached: list[str] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.reached.append(f"{scope['method']} {scope['path']}")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'{"from": "vllm"}'})


@dataclass
class GuardClient:
    """One engine process: a guard, what is behind it, and a way to call it."""

    guard: Guard
    vllm: FakeVLLM
    engine: FakeEngine

    async def call(
        self,
        method: str,
        path: str,
        *,
        token: str | None = None,
        attempt: int | str | None = None,
        instance: str | None = None,
        body: Any = None,
    ) -> tuple[int, dict[str, Any]]:
        """Status and JSON of one request."""
        headers = []
        for name, value in (
            ("authorization", token and f"Bearer {token}"),
            ("x-grpo-attempt", attempt),
            ("x-grpo-instance", instance),
        ):
            if value is not None:
                headers.append((name.encode(), str(value).encode()))
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": headers,
            "app": SimpleNamespace(state=SimpleNamespace(engine_client=self.engine)),
        }
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.guard(scope, receive, send)
        return sent[0]["status"], json.loads(sent[1]["body"])


def guard_environment(folder: Path, *, run_json: str) -> dict[str, str]:
    """The variables of a rollout pod, with their files in `folder`."""
    (folder / "run.json").write_text(run_json)
    (folder / "data-token").write_text(DATA + "\n")
    (folder / "admin-token").write_text(ADMIN + "\n")
    return {
        Env.ROLE: Role.ROLLOUT,
        Env.RUN_CONFIG: str(folder / "run.json"),
        Env.TOKENS_DIR: str(folder),
        Env.CACHE_DIR: str(folder / "cache"),
        Env.VOLUMES_DIR: str(folder / "volumes"),
        Env.INSTANCE: "pod-0",
    }
