"""Plays groups of episodes: a gateway over engines that are a fake, and a worker of its own."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from chats import MAX_MODEL_LEN, ScriptedPolicy, chat_model, tokens

from grpo_runtime.data.prompt import Prompt
from grpo_runtime.gateway.gateway import Gateway
from grpo_runtime.gateway.server import application
from grpo_runtime.gateway.serving import served
from grpo_runtime.rollouts.agents.source import Agent, AgentOptions
from grpo_runtime.rollouts.function.shared_process import HANG_SECONDS
from grpo_runtime.rollouts.function.turn_sampler import TurnSampler
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import FunctionFailedError, GenerateRequest, GivenUp, Rollout

HUNG_SECONDS = 60.0
SEEDS = (11, 12)


class Policy(ScriptedPolicy):
    """It can rest."""

    is_awake = True

    async def rest(self) -> None:
        self.is_awake = False


def group_of(columns: dict[str, Any]) -> Group:
    prompt = Prompt(index=0, content="Guess.", columns=columns)
    return Group(
        step=2,
        number=0,
        prompt=prompt,
        requests=[GenerateRequest(tokens("Guess."), seed) for seed in SEEDS],
    )


async def play_groups(
    options: AgentOptions,
    policy: Policy,
    groups: Sequence[Group],
    *,
    hang_seconds: float = HANG_SECONDS,
    num_tries: int = 3,
    max_model_len: int = MAX_MODEL_LEN,
) -> None:
    """Make all completions of the groups."""
    model = replace(chat_model(), max_model_len=max_model_len)
    gateway = Gateway(model, TurnSampler(policy))  # type: ignore[arg-type]

    def take(group: Group, index: int, found: Rollout | GivenUp) -> None:
        group.rollouts[index] = found

    app = application(gateway, given={})
    async with (
        asyncio.timeout(HUNG_SECONDS),
        served(app) as url,
        Agent(options, pauses_seconds=[0.0] * (num_tries - 1), hang_seconds=hang_seconds) as running,
    ):
        source = running.over(policy, gateway, url=f"{url}/v1")  # type: ignore[arg-type]
        await source.sample(groups, take=take)
    assert not policy.is_awake


def whole(group: Group) -> list[Rollout]:
    """The completions of a group. Raises FunctionFailedError with the failure of one that is given up."""
    for given_up in group.given_up:
        raise FunctionFailedError(given_up.why)
    return group.completions
