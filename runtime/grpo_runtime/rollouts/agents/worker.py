"""What the processes do that play the episodes of an environment, any number at a time.

One is started as `python -m MODULE CONFIG PARENT HIDDEN`, where the kind of the environment says which module
that is (`kinds`), and speaks in lines of `rollouts.function.worker`. An episode asks for no turns there: it
calls the gateway.

    {"id": 7, "begin": {...}}                     `url` and keys of the sessions, and the fields of `Task`
    {"id": 7, "reward": 1.0, "state": {}, "is_done": true}    the episode has ended: with a reward and a state
    of its environment, or nulls. A kind that tells failures apart adds how many of them there were, by
    `EpisodeFailure`: "failures": {"policy": 2, "tool": 1}
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from grpo_runtime.process.line_worker import Lines, serve
from grpo_runtime.rollouts.function.conversation import Ask
from grpo_runtime.rollouts.function.worker import Conversations


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


@dataclass(frozen=True, kw_only=True)
class Episode:
    """A task, and clients of the policy for it."""

    task: Task
    client: AsyncOpenAI
    untrained: AsyncOpenAI
    """What it is answered is not trained."""


class Player(Protocol):
    """Plays the episodes of an environment."""

    async def start(self) -> None:
        """Make ready for the first episode. Raises UserError, or WorkerFailedError for what may succeed
        another time."""
        ...

    async def play(self, episode: Episode) -> Mapping[str, Any]:
        """What the last line of an episode says."""
        ...

    async def close(self) -> None:
        """End what `start` has started: no other episode comes. Where the process is killed, that ends
        by itself."""
        ...


class EpisodeClient(AsyncOpenAI):
    """A client of one episode. Those of all episodes share their connections, which end with the process."""

    async def close(self) -> None:
        """Closes nothing, also at the end of `async with`: other episodes use the connections."""


def serve_episodes(arguments: Sequence[str], *, load: Callable[[dict[str, Any]], Player]) -> int:
    """Play episodes until the requests end, with what `load` makes of CONFIG; returns the exit code."""
    return serve(arguments, load=load, start=lambda player: player.start(), answer=play_all)


def play_all(player: Player, lines: Lines, runner: asyncio.Runner) -> None:
    """Play the episodes that lines ask for, until these end, and close the player."""

    async def serve_all() -> None:
        # connections take long to set up, so they are shared; none goes through a proxy that the pod has for
        # other hosts
        async with DefaultAsyncHttpxClient(trust_env=False) as connections:
            # an answer may take as long as a busy fleet needs, and an episode has a deadline
            shared = EpisodeClient(
                base_url="http://unknown", api_key="unknown", timeout=None, http_client=connections
            )

            def client(given: Mapping[str, Any], key: str) -> AsyncOpenAI:
                return shared.with_options(base_url=given["url"], api_key=given[key])

            async def play(given: Mapping[str, Any], _: Ask) -> dict[str, Any]:
                episode = Episode(
                    task=Task(**given["task"]),
                    client=client(given, "key"),
                    untrained=client(given, "untrained_key"),
                )
                return dict(await player.play(episode))

            try:
                await Conversations(play, lines).serve()
            finally:
                await player.close()

    runner.run(serve_all())
