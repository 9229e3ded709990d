"""An environment that is a coroutine of the user: `async def agent(client, task)`."""

import inspect
import sys
from collections.abc import Mapping
from typing import Any

from grpo_runtime.errors import UserError
from grpo_runtime.process.user_code import accepted
from grpo_runtime.rollouts.agents.result import result_of
from grpo_runtime.rollouts.agents.worker import Episode, serve_episodes
from grpo_runtime.rollouts.function.worker import UserFunction, find_function

_OWN = ("client", "untrained", "prompt", "task")


def main(arguments: list[str]) -> int:
    """Serve until the requests end; returns the exit code."""
    return serve_episodes(arguments, load=find_agent)


class Coroutine:
    """The user's agent."""

    def __init__(self, agent: UserFunction) -> None:
        self._agent = agent

    async def start(self) -> None:
        """Nothing needs to be started."""

    async def close(self) -> None:
        """Nothing was started."""

    async def play(self, episode: Episode) -> Mapping[str, Any]:
        """Call the agent with as many arguments as its signature takes."""
        task = episode.task
        own = {"client": episode.client, "untrained": episode.untrained, "prompt": task.prompt, "task": task}
        return result_of(await self._agent(**accepted(self._agent, {**task.columns, **own})))


def find_agent(config: dict[str, Any]) -> Coroutine:
    """The coroutine function that CONFIG names. Raises UserError when there is none, and when it needs an
    argument that no episode has."""
    agent, columns = find_function(config), config["columns"]
    if columns is None:
        return Coroutine(agent)
    names = [*_OWN, *columns]
    try:
        inspect.signature(agent).bind(**accepted(agent, dict.fromkeys(names)))
    except TypeError as error:
        raise UserError(
            f"{config['field']}: the agent cannot be called ({error}): its arguments may be "
            f"{', '.join(_OWN)} and the columns of the data, {', '.join(columns) or 'of which it has none'}"
        ) from error
    return Coroutine(agent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
