"""The process that runs the user's agent, for any number of episodes at a time.

It is started as `python -m grpo_runtime.rollouts.agents.worker CONFIG PARENT HIDDEN`, and speaks in lines of
`rollouts.function.worker`. An episode asks for no turns there: its agent calls the gateway.

    {"id": 7, "begin": {...}}                     `url` and keys of the sessions, and the fields of `Task`
    {"id": 7, "reward": 1.0, "state": {}, "is_done": true}    the agent has returned: a reward and a state of
    its environment, or nulls. A kind that tells failures apart adds how many of them there were, by
    `EpisodeFailure`: "failures": {"policy": 2, "tool": 1}
"""

import asyncio
import inspect
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from grpo_runtime.errors import UserError
from grpo_runtime.process.line_worker import Lines, serve
from grpo_runtime.process.user_code import accepted
from grpo_runtime.rollouts.function.conversation import Ask
from grpo_runtime.rollouts.function.worker import Conversations, UserFunction, find_function


@dataclass(frozen=True, kw_only=True)
class Task:
    """What an agent is to do."""

    prompt: str | list[dict[str, Any]]
    """The prompt as in the dataset."""
    columns: dict[str, Any]
    """The other columns of the row, by name."""
    sample_index: int
    """The index of the episode in its group, from 0."""
    seed: int
    """Seed for the agent's own random choices: the same in every run and after every resume."""


def main(arguments: list[str]) -> int:
    """Serve until the requests end; returns the exit code."""
    return serve(arguments, load=find_agent, answer=_answer)


_OWN = ("client", "untrained", "prompt", "task")


def find_agent(config: dict[str, Any]) -> UserFunction:
    """The coroutine function that CONFIG names. Raises UserError when there is none, and when it needs an
    argument that no episode has."""
    agent, columns = find_function(config), config["columns"]
    if columns is None:
        return agent
    names = [*_OWN, *columns]
    try:
        inspect.signature(agent).bind(**accepted(agent, dict.fromkeys(names)))
    except TypeError as error:
        raise UserError(
            f"{config['field']}: the agent cannot be called ({error}): its arguments may be "
            f"{', '.join(_OWN)} and the columns of the data, {', '.join(columns) or 'of which it has none'}"
        ) from error
    return agent


class EpisodeClient(AsyncOpenAI):
    """A client of one episode. Those of all episodes share their connections, which end with the process."""

    async def close(self) -> None:
        """Closes nothing, also at the end of `async with`: other episodes use the connections."""


def _answer(agent: UserFunction, lines: Lines, runner: asyncio.Runner) -> None:
    async def serve_all() -> None:
        # connections take long to set up, so they are shared; none goes through a proxy that the pod has for
        # other hosts
        async with DefaultAsyncHttpxClient(trust_env=False) as connections:
            # an answer may take as long as a busy fleet needs, and an episode has a deadline
            shared = EpisodeClient(
                base_url="http://unknown", api_key="unknown", timeout=None, http_client=connections
            )

            async def play(given: Mapping[str, Any], ask: Ask) -> dict[str, Any]:
                task = Task(**given["task"])
                clients = {
                    name: shared.with_options(base_url=given["url"], api_key=given[key])
                    for name, key in (("client", "key"), ("untrained", "untrained_key"))
                }
                arguments = {**task.columns, "prompt": task.prompt, "task": task, **clients}
                return _result(await agent(**accepted(agent, arguments)))

            await Conversations(play, lines).serve()

    runner.run(serve_all())


_RESULT = ("reward", "state")


def _result(found: object) -> dict[str, Any]:
    """What an agent returned: a reward, or an object with a reward and a state. Raises TypeError or
    ValueError for anything else."""
    if not isinstance(found, Mapping):
        return {"reward": _reward(found), "state": None}
    if unknown := sorted(map(str, found.keys() - set(_RESULT))):
        raise TypeError(
            f"the agent returned an object with {', '.join(unknown)}: it may have reward and state"
        )
    state = found.get("state")
    try:
        json.dumps(state, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise type(error)(f"the state that the agent returned is no JSON: {error}") from error
    return {"reward": _reward(found.get("reward")), "state": state}


def _reward(found: object) -> float | None:
    if found is None:
        return None
    if not isinstance(found, int | float):
        raise TypeError(
            f"the agent returned {type(found).__name__}: return a number, or None, or a dict with such a "
            "reward and a state"
        )
    if not math.isfinite(found):
        raise ValueError(f"the agent returned {found}: return a finite number, or None")
    return float(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
