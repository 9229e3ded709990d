"""What reward functions are asked about a group, over a pool that is a fake."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from pod_builder import run_config

from grpo_runtime.data.prompt import Prompt
from grpo_runtime.rewards.chunk import Column
from grpo_runtime.rewards.types import FailureKind, OpenCalls, RewardFailure, RewardRequest
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import AgentCalls, AgentTurn, GenerateRequest, Rollout
from grpo_runtime.rollouts.scoring import Scorer

RUN = run_config(algorithm={"steps": 5, "promptsPerStep": 2, "groupSize": 2})
PROMPT = Prompt(index=0, content="a=", columns={"answer": "a"})


class FakeDecoder:
    def tokenizer(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        assert not add_special_tokens
        return {"input_ids": [len(text), 7]}

    def text(self, ids: tuple[int, ...]) -> str:
        return f"text {ids[0]}"

    def ending(self, ids: tuple[int, ...]) -> str:
        return "<think>"


class FakePool:
    """Records what it is asked and what it judges."""

    def __init__(self) -> None:
        self.requests: list[RewardRequest] = []
        self.judged: list[tuple[Any, int, bool]] = []

    def submit(self, chunk: RewardRequest) -> "asyncio.Task[tuple[Column, ...]]":
        self.requests.append(chunk)
        return asyncio.create_task(self._score())

    async def _score(self) -> tuple[Column, ...]:
        return (Column(values=[1.0, None], logged={"mine": [1.0, 2.0]}),)

    async def try_out(self, chunk: RewardRequest) -> None:
        self.requests.append(chunk)

    def open_calls(self) -> list[OpenCalls]:
        return [OpenCalls(name="accuracy", number=1)]

    def judge(self, scored: Any, *, step: int, is_evaluation: bool) -> None:
        self.judged.append((scored, step, is_evaluation))


def scorer(pool: FakePool) -> Scorer:
    return Scorer(pool, RUN, decoder=FakeDecoder())  # type: ignore[arg-type]


def group(number: int = 1, *, is_evaluation: bool = False) -> Group:
    requests = [GenerateRequest((9,), seed=seed, is_evaluation=is_evaluation) for seed in (0, 1)]
    made: list[Rollout | None] = [Rollout((9,), (id, 1), (-1.0, -1.0), (), True, "fake") for id in (4, 5)]
    return Group(step=3, number=number, prompt=PROMPT, requests=requests, rollouts=made)


@pytest.mark.parametrize("is_evaluation", [True, False])
async def test_a_group_is_asked_about_with_the_columns_of_its_prompt(is_evaluation: bool) -> None:
    pool = FakePool()
    [column] = await scorer(pool).score(group(is_evaluation=is_evaluation))
    assert column.values == [1.0, None]
    assert pool.requests == [
        RewardRequest(
            prompts=["a=", "a="],
            completions=["text 4", "text 5"],
            prefills=["<think>", "<think>"],
            completion_ids=[[4, 1], [5, 1]],
            columns={"answer": ["a", "a"]},
            group_ids=[1, 1],
            step=3,
            is_evaluation=is_evaluation,
            total_steps=5,
        )
    ]


async def test_of_an_episode_the_last_sequence_is_asked_about() -> None:
    pool = FakePool()
    asked = group()
    first, second = asked.completions
    branch = Rollout((9, 4, 1, 3), (6, 2), (-1.0, -1.0), (), True, "fake")
    asked.rollouts = [replace(first, branches=(branch,)), second]
    await scorer(pool).score(asked)
    [request] = pool.requests
    assert request.completions == ["text 6", "text 5"]
    assert request.completion_ids == [[6, 2], [5, 1]]


async def test_of_an_episode_whose_first_chat_went_on_behind_a_second_one_the_first_is_asked_about() -> None:
    pool = FakePool()
    asked = group()
    first, second = asked.completions
    turns = [
        AgentTurn(sequence=sequence, start=start, end=start + 1, seconds=1.0, waited_seconds=0.0)
        for sequence, start in ((0, 0), (1, 0), (0, 1))
    ]
    helper = Rollout((9, 9), (6, 2), (-1.0, -1.0), (), True, "fake")
    calls = AgentCalls(environment="game", turns=turns)
    asked.rollouts = [replace(first, branches=(helper,), calls=calls), second]
    await scorer(pool).score(asked)
    [request] = pool.requests
    assert request.completions == ["text 4", "text 5"]
    assert request.completion_ids == [[4, 1], [5, 1]]


async def test_of_an_agent_functions_see_what_it_returned_and_its_whole_episode() -> None:
    run = run_config(
        algorithm={"steps": 5, "promptsPerStep": 2, "groupSize": 2},
        environments=[{"name": "game", "function": "a:b"}],
    )
    pool = FakePool()
    asking = Scorer(pool, run, decoder=FakeDecoder())  # type: ignore[arg-type]
    asked, trajectory = group(), {"chats": [[{"role": "assistant", "content": "5"}]], "state": {"won": True}}
    first, second = asked.completions
    asked.rollouts = [replace(first, returned=1.0, trajectory=trajectory), second]
    await asking.score(asked)
    await asking.try_out(PROMPT, step=2)
    scored, tried = pool.requests
    assert (scored.returned, scored.trajectories) == ([1.0, None], [trajectory, None])
    chat = [{"role": "user", "content": "a="}, {"role": "assistant", "content": "1"}]
    assert tried.trajectories == [{"chats": [chat], "state": None}] * 2


async def test_functions_are_tried_with_a_group_of_one_short_completion_of_a_prompt() -> None:
    pool = FakePool()
    await scorer(pool).try_out(PROMPT, step=2)
    assert pool.requests == [
        RewardRequest(
            prompts=["a=", "a="],
            completions=["text 1", "text 1"],
            prefills=["<think>", "<think>"],
            completion_ids=[[1, 7], [1, 7]],
            columns={"answer": ["a", "a"]},
            group_ids=[0, 0],
            step=2,
            total_steps=5,
        )
    ]


@pytest.mark.parametrize(
    ("is_evaluation", "name"), [(True, "the evaluation after step 3"), (False, "step 4")]
)
def test_an_evaluation_is_told_apart_from_a_step(is_evaluation: bool, name: str) -> None:
    pool = FakePool()
    scored = group(is_evaluation=is_evaluation)
    scored.columns = (Column(values=[1.0, 0.0]),)
    scorer(pool).judge([scored], step=3)
    assert pool.judged == [([scored.columns], 3, is_evaluation)]
    assert scorer(pool).name_of(scored) == name


def test_what_functions_log_is_the_mean_of_all_values_of_a_step_and_failures_add_up() -> None:
    failure = RewardFailure(name="accuracy", kind=FailureKind.LOST, reason="", num_samples=2, sample={})
    one, two = group(0), group(1)
    one.columns = (Column(values=[None, None], failures=(failure,), logged={"mine": [4.0]}),)
    two.columns = (Column(values=[1.0, 0.0], failures=(failure,), logged={"mine": [1.0, 1.0], "loss": [9]}),)
    found = scorer(FakePool()).metrics([one, two])
    name = RUN.rewards[0].name
    assert found == {"mine": 2.0, f"rewards/{name}/failures": 4.0, f"rewards/{name}/failed_calls": 2.0}
