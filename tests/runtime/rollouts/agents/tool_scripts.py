"""Episodes in this process, with a client that is a fake."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import httpx
from openai import BadRequestError, RateLimitError

from grpo_runtime.rollouts.agents.worker import Episode, Player, Task

Scripted = str | list[tuple[str, str]] | None


class ScriptedClient:
    """A client whose answers are a script: texts, of which one with <tool_call> is a call that cannot be
    read, and calls of tools. None is no answer, but that the call is refused as wrong, and behind the end
    of the script a limit refuses."""

    def __init__(self, *script: Scripted, finish_reason: str | None = None) -> None:
        self.messages: list[Any] = []
        self.tools: list[Any] = []
        self._script = list(script)
        self._finish_reason = finish_reason
        self.chat = SimpleNamespace(completions=self)

    async def create(
        self, *, model: str, messages: Sequence[Any], tools: Sequence[Any] = (), temperature: float = 1.0
    ) -> Any:
        self.messages, self.tools = [*messages], [*tools]
        request = httpx.Request("POST", "http://gateway")
        if not self._script:
            raise RateLimitError("limits.turns", response=httpx.Response(429, request=request), body=None)
        said = self._script.pop(0)
        if said is None:
            raise BadRequestError("no such token", response=httpx.Response(400, request=request), body=None)
        calls = [
            SimpleNamespace(
                id=f"{place}",
                type="function",
                function=SimpleNamespace(name=name, arguments=arguments),
            )
            for place, (name, arguments) in enumerate([] if isinstance(said, str) else said)
        ]
        reason = self._finish_reason or ("tool_calls" if calls else "stop")
        content = said if isinstance(said, str) else None
        message = SimpleNamespace(role="assistant", content=content, tool_calls=calls or None)
        more = {"unreadable_call": True} if "<tool_call>" in said else None
        choice = SimpleNamespace(message=message, finish_reason=reason, model_extra=more)
        return SimpleNamespace(choices=[choice])

    @property
    def told(self) -> list[str]:
        """What tools answered."""
        return [
            message["content"]
            for message in self.messages
            if isinstance(message, dict) and message["role"] == "tool"
        ]


async def played(
    player: Player, client: ScriptedClient, *, prompt: Any = "Go.", **columns: Any
) -> dict[str, Any]:
    """What the last line of an episode with this script says."""
    await player.start()
    task = Task(prompt=prompt, columns=columns or {"goal": 3}, sample_index=0, seed=1)
    return dict(await player.play(Episode(task=task, client=client, untrained=client)))  # type: ignore[arg-type]
