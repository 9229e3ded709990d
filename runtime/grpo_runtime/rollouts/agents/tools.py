"""An environment that is tools: a chat in which the policy calls them, until a reply calls none.

Its tools are functions of the user, the methods of a class in the form of TRL's `environment_factory`, and
those of MCP servers. The last line of an episode counts what the policy was told of its own mistakes, and of
failures of tools:

    {"id": 7, "reward": 1.0, "state": null, "is_done": true, "failures": {"policy": 2, "tool": 1}}

Calls that cannot be read are told, too, and counted by the gateway, as those of every agent are.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from openai import BadRequestError, RateLimitError

from grpo_runtime.errors import UserError
from grpo_runtime.gateway.replies import UNREADABLE_CALL
from grpo_runtime.process.user_code import load_either
from grpo_runtime.rollouts.agents.result import result_of
from grpo_runtime.rollouts.agents.toolset import (
    BadCallError,
    CallTool,
    EpisodeThread,
    OpenTools,
    Tool,
    ToolFailedError,
    UserTools,
    bounded,
)
from grpo_runtime.rollouts.agents.worker import Episode, Task, serve_episodes

if TYPE_CHECKING:  # its import takes long, and most environments have no servers
    from grpo_runtime.rollouts.agents.mcp_servers import McpServers

_CANNOT_BE_READ = {
    "role": "user",
    "content": "Error: no tool was called, because the call cannot be read: write it in the form of your "
    "tools",
}
"""It answers no call, so it is no message of a tool."""


def main(arguments: list[str]) -> int:
    """Serve until the requests end; returns the exit code."""
    return serve_episodes(arguments, load=ToolPlayer)


class ToolPlayer:
    """Plays the loop of calls."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Raises UserError where the user's code is not there, or has no tools."""
        self._field = config["field"]
        self._has_prompts = config["has_prompts"]
        self._system_prompt = config["system_prompt"]
        self._code: UserTools | None = None
        if config["function"] is not None or config["file"] is not None:
            found = load_either(config["function"], config["file"], field=self._field, is_called=False)
            self._code = UserTools(found, field=self._field, columns=config["columns"])
        self._servers = _servers_of(config["servers"])
        self._tools: dict[str, Tool] = {}

    async def start(self) -> None:
        """Start the servers. Raises UserError where two tools have one name and where the schema of one is
        none, and WorkerFailedError for a server that does not start."""
        found = [] if self._code is None else [*self._code.tools]
        if self._servers is not None:
            found += await self._servers.start(field=self._field)
        for tool in found:
            tool.require_schema(field=self._field)
            other = self._tools.setdefault(tool.name, tool)
            if other is not tool:
                raise UserError(
                    f"{self._field}: {other.place} and {tool.place} both have a tool {tool.name}: rename one"
                )
        if not found:
            raise UserError(f"{self._field}: its MCP servers have no tools: name others, or a function")

    async def close(self) -> None:
        """End the servers."""
        if self._servers is not None:
            await self._servers.close()

    async def play(self, episode: Episode) -> Mapping[str, Any]:
        """One episode."""
        thread = EpisodeThread()
        async with AsyncExitStack() as stack:
            stack.callback(thread.close)
            calls: dict[str, CallTool] = {}
            if self._servers is not None:
                calls |= await stack.enter_async_context(self._servers.opened())
            code = None if self._code is None else await self._code.opened(thread)
            if code is not None:
                calls |= code.calls
            messages = await self._beginning(episode.task, code)
            failures = Counter[str]()
            await self._chat(episode, messages, calls, failures)
            reward = None if code is None else await code.reward()
            return {**result_of(reward), "failures": dict(failures)}

    async def _beginning(self, task: Task, code: OpenTools | None) -> list[Any]:
        """The messages that the prompt is, behind `sampling.systemPrompt`, and with what `reset` says behind
        the last of the user's."""
        text = None if code is None else await code.reset({**task.columns, "prompt": task.prompt})
        prompt = task.prompt if self._has_prompts or text is None else ""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [*prompt]
        if self._system_prompt is not None and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": self._system_prompt})
        if text is None:
            return messages
        places = [place for place, message in enumerate(messages) if message["role"] == "user"]
        if not places:
            return [*messages, {"role": "user", "content": text}]
        last = messages[places[-1]]
        messages[places[-1]] = {**last, "content": _with_text(last.get("content"), text)}
        return messages

    async def _chat(
        self, episode: Episode, messages: list[Any], calls: Mapping[str, CallTool], failures: Counter[str]
    ) -> None:
        """Until a reply calls nothing, is cut, or a limit refuses the next one. A chat that is refused as
        wrong ends, too, where a reply has made it so. Raises BadRequestError where the first one is."""
        tools = [tool.json for tool in self._tools.values()]
        num_first = len(messages)
        while True:
            try:
                answer = await episode.client.chat.completions.create(
                    model="policy",
                    messages=messages,
                    tools=tools,  # type: ignore[arg-type]
                )
            except RateLimitError:
                return
            except BadRequestError:
                if len(messages) == num_first:
                    raise
                failures["policy"] += 1
                return
            choice = answer.choices[0]
            if (choice.model_extra or {}).get(UNREADABLE_CALL):
                messages += [choice.message, _CANNOT_BE_READ]
                continue
            if choice.finish_reason != "tool_calls":
                return
            messages.append(choice.message)
            for call in choice.message.tool_calls or ():
                assert call.type == "function"
                content = await self._answer(call.function.name, call.function.arguments, calls, failures)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})

    async def _answer(
        self, name: str, arguments: str, calls: Mapping[str, CallTool], failures: Counter[str]
    ) -> str:
        """What the policy is told of a call."""
        try:
            if name not in self._tools:
                raise BadCallError(f"there is no tool {name}, but {', '.join(self._tools)}")
            return await calls[name](self._tools[name].arguments(arguments))
        except BadCallError as error:
            failures["policy"] += 1
            return bounded(f"Error: {error}")
        except ToolFailedError as error:
            failures["tool"] += 1
            return bounded(f"Error: {error}")


def _with_text(content: Any, text: str) -> Any:
    """Content of a message, with a text behind it: a part of its own where the content is parts."""
    if isinstance(content, list):
        return [*content, {"type": "text", "text": text}]
    return f"{content or ''}{text}"


def _servers_of(servers: Sequence[Mapping[str, Any]]) -> "McpServers | None":
    if not servers:
        return None
    from grpo_runtime.rollouts.agents.mcp_servers import McpServers

    return McpServers(servers)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
