"""An evaluation plays the environments that its rows name, and says what each of them earned."""

import asyncio
import os
from pathlib import Path

import pytest
from chats import END, chat_model, chat_tokenizer
from playing import HUNG_SECONDS, Policy
from pod_builder import run_config

from grpo_api.v1alpha1.spec import EvalSpec, SamplingSpec
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.gateway.session import Limits
from grpo_runtime.rewards.chunk import Column
from grpo_runtime.rollouts.agents.environments import Environment, Environments
from grpo_runtime.rollouts.agents.kinds import COROUTINE, AgentCode
from grpo_runtime.rollouts.agents.source import Agent, AgentOptions
from grpo_runtime.rollouts.collect import Source
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import GivenUp, Rollout
from grpo_runtime.trainer.evaluation import Evaluation

ROWS = (
    {"plays": "game", "high": "1"},
    {"plays": "judge", "high": ""},
    {"plays": "game", "high": "9"},
    {"plays": "game", "high": "0"},
)


def agent(name: str, function: str) -> Agent:
    code = AgentCode(function=f"agent_examples:{function}")
    options = AgentOptions(name=name, kind=COROUTINE, code=code, limits=Limits())
    return Agent(options, pauses_seconds=[])


def says(prompt: str) -> str:
    """A judge gives .25; a player counts up."""
    return f".25{END}" if "Score" in prompt else f"{prompt.count('higher')}{END}"


async def test_an_evaluation_plays_the_environments_of_its_rows_and_has_the_reward_of_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}")
    policy = Policy(says)
    evaluation = Evaluation(
        [Prompt(index=place, content="Guess.", columns=columns) for place, columns in enumerate(ROWS)],
        options=EvalSpec(everySteps=2, source="file:///eval.jsonl"),
        run_config=run_config(
            dataset={"source": "file:///train.jsonl", "environment": "plays"},
            environments=[{"name": name, "function": "mine:agent"} for name in ("judge", "game")],
            rewards=[{"name": "earned", "builtin": "environment"}],
        ),
        tokenizer=chat_tokenizer(),
        best_reward=None,
        mark_best=lambda step, reward: None,
    )

    def take(group: Group, index: int, found: Rollout | GivenUp) -> None:
        group.rollouts[index] = found

    groups = evaluation.groups(2)

    async def played(source: Source) -> None:
        await source.sample(groups, take=take)
        for group in groups:
            group.columns = (Column(values=[episode.returned for episode in group.completions]),)

    async with (
        asyncio.timeout(HUNG_SECONDS),
        agent("judge", "asks_a_judge") as judge,
        agent("game", "guesses") as game,
    ):
        environments = Environments(
            environments=[
                Environment(name="judge", weight=1.0, workers=[judge]),
                Environment(name="game", weight=1.0, workers=[game]),
            ],
            column="plays",
            model=chat_model(),
            sampling=SamplingSpec(),
        )
        async with environments.over(policy) as source:  # type: ignore[arg-type]
            found = await evaluation.measure(played(source), groups)
    # 1 is found with the second guess, 9 is not, and 0 is with the first
    assert found["eval/env/game/reward"] == pytest.approx(2 / 3)
    assert found["eval/env/judge/reward"] == 0.25
    assert found["eval/reward"] == pytest.approx((1 + 0.25 + 0 + 1) / 4)
    assert policy.requests and all(request.is_evaluation for request in policy.requests)
