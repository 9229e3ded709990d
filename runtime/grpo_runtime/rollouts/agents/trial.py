"""Plays a group of an environment before a run, against a policy that says what a script has.

What fails with plain text, or with a valid call of a tool, fails in a run, too. What a broken call leads to
is told: an untrained policy makes many.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from grpo_runtime.data.prompt import Prompt
from grpo_runtime.errors import UserError
from grpo_runtime.gateway.server import application
from grpo_runtime.gateway.serving import served
from grpo_runtime.gateway.session import ChatModel
from grpo_runtime.process.line_worker import shortened
from grpo_runtime.rollouts.agents.script import Script, ScriptedEngines, ScriptedGateway
from grpo_runtime.rollouts.agents.source import Agent, AgentOptions
from grpo_runtime.rollouts.function.function_process import FunctionProcess
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import FunctionFailedError, GenerateRequest, GivenUp, Rollout

MOST_SECONDS = 600.0
"""Of one environment."""
_TYPO = re.compile(
    r"Error: (AttributeError|ImportError|ModuleNotFoundError|NameError|NotImplementedError|TypeError"
    r"|UnboundLocalError):"
)
"""What a policy is told of a tool that no call can succeed with. A tool may well raise another error for
arguments that were made up."""
_MOST_TURNS = 16
"""Of an episode, in place of `limits.turns`: what a tool answers is seen with the call after it, and an agent
may go on as long as it is answered."""


async def try_out(
    options: AgentOptions,
    prompt: Prompt,
    *,
    model: ChatModel,
    tell: Callable[[str], None],
    most_seconds: float = MOST_SECONDS,
) -> None:
    """Play a group of an environment: text, a valid call of each tool that it offers, and two calls that are
    broken. `tell` gets a sentence about what the agent made of each.

    Raises UserError where it does not start, and where it fails with what is no fault of the policy.
    """
    tried = replace(options, limits=replace(options.limits, turns=_MOST_TURNS))
    gateway = ScriptedGateway(model)
    try:
        async with (
            asyncio.timeout(most_seconds),
            served(application(gateway, given={})) as url,
            _TriedAgent(tried, pauses_seconds=[]) as agent,
        ):
            await _Trial(agent, prompt, gateway, url=f"{url}/v1", tell=tell).play()
    except TimeoutError as error:
        raise UserError(f"{options.field}: a group was not played within {most_seconds:g} s") from error


class _TriedAgent(Agent):
    """An agent whose episodes come one after the other: one process is enough for their only tries."""

    @asynccontextmanager
    async def last_process(self) -> AsyncIterator[FunctionProcess]:
        """The one that all share."""
        async with self.process() as process:
            yield process


class _Trial:
    def __init__(
        self,
        agent: Agent,
        prompt: Prompt,
        gateway: ScriptedGateway,
        *,
        url: str,
        tell: Callable[[str], None],
    ) -> None:
        self._field = agent.options.field
        self._prompt = prompt
        self._gateway = gateway
        self._say = tell
        self._rollouts: list[Rollout] = []
        self._source = agent.over(ScriptedEngines(gateway), gateway, url=url)  # type: ignore[arg-type]

    async def play(self) -> None:
        """Play it."""
        plain = self._script()
        episode = await self._required(plain)
        turns = "1 turn" if plain.num_turns == 1 else f"{plain.num_turns} turns"
        self._tell(f"plain text ends the episode after {turns}, with {_reward(episode)}")
        left = offered = list(plain.offered)
        while left:
            valid = self._script(calls=list(left))
            episode = await self._required(valid)
            for name, why in valid.not_called.items():
                self._tell(f"tool {name} was not called: {why}")
            for name, arguments in valid.called.items():
                what = f"a call {_call(name, arguments)}"
                if _TYPO.match(answer := valid.answers.get(name, "")):
                    raise UserError(f"{self._field}: {what} is valid, and the tool fails with it: {answer}")
                self._tell(f"{what} {_outcome(name, valid, episode)}")
            reached = valid.called.keys() | valid.not_called.keys()
            if not reached:
                self._tell(f"tools {', '.join(left)} were not called: it is not offered them again")
            left = [name for name in left if name not in reached] if reached else []
        if offered:
            await self._play_broken(offered[0])

    async def _play_broken(self, name: str) -> None:
        """A call with arguments that no tool has, and one that is cut off: faults of the policy."""
        for option, what in (
            ("has_other_arguments", "with other arguments"),
            ("is_broken", "that is cut off"),
        ):
            script = self._script(calls=[name], **{option: True})
            try:
                episode = await self._played()
            except FunctionFailedError as error:
                self._tell(f"a call of {name} {what} fails the episode: {error}")
                continue
            if script.called:
                self._tell(f"a call of {name} {what} {_outcome(name, script, episode)}")

    def _script(self, **what: Any) -> Script:
        self._gateway.script = Script(self._gateway.model, **what)
        return self._gateway.script

    async def _required(self, script: Script) -> Rollout:
        """An episode that may not fail."""
        try:
            return await self._played()
        except FunctionFailedError as error:
            said = [_call(name, arguments) for name, arguments in script.called.items()] or ["plain text"]
            raise UserError(f"{error} (a script played the policy: {said[-1]})") from error

    async def _played(self) -> Rollout:
        """The next episode of the group. Raises FunctionFailedError where it fails."""
        place = len(self._rollouts)
        group = Group(
            step=0,
            number=0,
            prompt=self._prompt,
            requests=[GenerateRequest((), seed=seed) for seed in range(place + 1)],
            rollouts=[*self._rollouts, None],
        )

        def take(group: Group, index: int, found: Rollout | GivenUp) -> None:
            group.rollouts[index] = found

        await self._source.sample([group], take=take)
        found = group.rollouts[-1]
        if isinstance(found, GivenUp):
            raise FunctionFailedError(found.why)
        assert found is not None, "the episode is neither finished nor given up"
        self._rollouts.append(found)
        return found

    def _tell(self, sentence: str) -> None:
        self._say(f"{self._field}: {sentence}")


def _reward(episode: Rollout) -> str:
    return "no reward" if episode.returned is None else f"the reward {episode.returned:g}"


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name}({json.dumps(arguments)})"


def _outcome(name: str, script: Script, episode: Rollout) -> str:
    """What a call of a tool led to."""
    if name in script.answers:
        return f"is answered: {shortened(script.answers[name])}"
    return f"ends the episode, with {_reward(episode)}"
