"""Rewards of a step, from a pool that answers as told."""

import asyncio
import math
from typing import Any

import pytest
import torch
from pod_builder import run_config

from grpo_runtime.data.prompt import Prompt
from grpo_runtime.rewards.types import OpenCalls, RewardMatrix, RewardRequest
from grpo_runtime.rollout.interface import Rollout
from grpo_runtime.trainer.scoring import Scorer, StepScoring

RUN = run_config(algorithm={"steps": 5, "promptsPerStep": 2, "groupSize": 2})
PROMPTS = [
    Prompt(index=index, content=f"{word}=", columns={"answer": word}) for index, word in enumerate("ab")
]
ROLLOUTS = [Rollout((9,), (index, 1), (-1.0, -1.0), (), True, "fake") for index in range(4)]


class FakeDecoder:
    def tokenizer(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        assert not add_special_tokens
        return {"input_ids": [len(text), 7]}

    def text(self, ids: tuple[int, ...]) -> str:
        return f"text {ids[0]}"

    def ending(self, ids: tuple[int, ...]) -> str:
        return "<think>"


class FakePool:
    """Gives the groups of a step the rewards `of_groups`, the group of PROMPTS[0] last."""

    def __init__(self, *of_groups: list[float | None]) -> None:
        self.requests: list[RewardRequest] = []
        self.of_groups = of_groups
        self.are_evaluations: list[bool] = []
        self._is_second_scored = asyncio.Event()

    def submit(self, chunk: RewardRequest) -> "asyncio.Task[Any]":
        self.requests.append(chunk)
        return asyncio.create_task(self._score(chunk.prompts[0] == PROMPTS[0].content))

    async def _score(self, is_first: bool) -> Any:
        if is_first:
            await self._is_second_scored.wait()
            return self.of_groups[0]
        self._is_second_scored.set()
        return self.of_groups[1]

    async def try_out(self, chunk: RewardRequest) -> None:
        self.requests.append(chunk)

    def open_calls(self) -> list[OpenCalls]:
        return [OpenCalls(name="accuracy", number=1)]

    def put_together(self, chunks: Any, *, step: int, is_evaluation: bool) -> RewardMatrix:
        self.are_evaluations.append(is_evaluation)
        values = tuple((value,) for chunk in chunks for value in chunk)
        return RewardMatrix(names=("accuracy",), values=values, failures=(), metrics={"mine": 1.0})


def scorer(pool: Any, **options: Any) -> Scorer:
    return Scorer(pool, RUN, decoder=FakeDecoder(), **options)  # type: ignore[arg-type]


async def test_each_completion_is_scored_with_the_columns_of_its_own_prompt() -> None:
    pool = FakePool([1.0, None], [0.0, 0.5])
    scores = await scorer(pool).begin(PROMPTS, step=3).scores(ROLLOUTS)
    assert scores.rewards.shape == (4, 1)
    assert math.isnan(scores.rewards[1, 0])
    assert torch.equal(scores.rewards[[0, 2, 3], 0], torch.tensor([1.0, 0.0, 0.5]))
    first, second = pool.requests
    assert (first.columns, second.columns) == ({"answer": ["a", "a"]}, {"answer": ["b", "b"]})
    assert (first.prompts, second.prompts) == (["a=", "a="], ["b=", "b="])
    assert first.completions + second.completions == [f"text {index}" for index in range(4)]
    assert first.prefills == second.prefills == ["<think>", "<think>"]
    assert (first.step, first.total_steps) == (3, 5)


async def test_functions_are_tried_with_a_group_of_one_short_completion_of_a_prompt() -> None:
    pool = FakePool()
    await scorer(pool).try_out(PROMPTS[1], step=2)
    assert pool.requests == [
        RewardRequest(
            prompts=["b=", "b="],
            completions=["text 1", "text 1"],
            prefills=["<think>", "<think>"],
            completion_ids=[[1, 7], [1, 7]],
            columns={"answer": ["b", "b"]},
            group_ids=[0, 0],
            step=2,
            total_steps=5,
        )
    ]


async def test_a_group_is_scored_as_soon_as_all_of_it_is_finished_and_only_once() -> None:
    pool = FakePool([1.0, None], [0.0, 0.5])
    scoring = scorer(pool).begin(PROMPTS, step=0)
    for index in (3, 0):
        scoring.finished(index, ROLLOUTS[index])
    await asyncio.sleep(0)
    assert pool.requests == []
    await asyncio.to_thread(scoring.finished, 2, ROLLOUTS[2])
    await asyncio.sleep(0)
    assert [request.completions for request in pool.requests] == [["text 2", "text 3"]]
    scores = await scoring.scores(ROLLOUTS)
    assert [request.completions for request in pool.requests] == [["text 2", "text 3"], ["text 0", "text 1"]]
    assert scores.values == ((1.0,), (None,), (0.0,), (0.5,))


async def test_a_step_says_how_many_groups_are_scored_once_none_was_for_some_seconds() -> None:
    now = [100.0]
    pool = FakePool([1.0, None], [0.0, 0.5])
    groups: list[asyncio.Future[Any]] = [asyncio.get_running_loop().create_future() for _ in PROMPTS]
    scoring = StepScoring(
        2,
        group_size=2,
        submit=lambda group, _: groups[group],  # type: ignore[arg-type,return-value]
        put_together=lambda chunks: pool.put_together(chunks, step=3, is_evaluation=False),
        open_calls=pool.open_calls,
        of_what="step 4",
        clock=lambda: now[0],
    )
    waiting = asyncio.ensure_future(scoring.scores(ROLLOUTS))
    await asyncio.sleep(0)
    now[0] = 105.0
    groups[1].set_result([0.0, 0.5])
    await asyncio.sleep(0)
    now[0] = 114.9
    assert scoring.waits_for() == ""
    now[0] = 115.0
    assert scoring.waits_for() == (
        "step 4: 1 of 2 groups are scored, and none was in the last 10 s; open calls of reward accuracy: 1"
    )
    groups[0].set_result([1.0, None])
    assert (await waiting).values == ((1.0,), (None,), (0.0,), (0.5,))


@pytest.mark.parametrize("is_evaluation", [True, False])
async def test_an_evaluation_is_told_apart_from_a_step(is_evaluation: bool) -> None:
    pool = FakePool([1.0, None], [0.0, 0.5])
    await scorer(pool, is_evaluation=is_evaluation).begin(PROMPTS, step=3).scores(ROLLOUTS)
    assert pool.are_evaluations == [is_evaluation]
    assert {request.is_evaluation for request in pool.requests} == {is_evaluation}


async def test_functions_that_do_not_apply_are_no_failure() -> None:
    scores = await scorer(FakePool([None] * 2, [None] * 2)).begin(PROMPTS, step=0).scores(ROLLOUTS)
    assert scores.rewards.isnan().all()
