"""Rewards of a step, from a pool that answers as told."""

import math
from typing import Any

import pytest
import torch
from pod_builder import run_config

from grpo_runtime.data.prompt import Prompt
from grpo_runtime.errors import UserError
from grpo_runtime.rewards.types import RewardFailure, RewardMatrix, RewardRequest
from grpo_runtime.rollout.interface import Rollout
from grpo_runtime.trainer.scoring import MAX_UNSCORED_STEPS, Scorer

RUN = run_config(algorithm={"steps": 5, "promptsPerStep": 2, "groupSize": 2})
PROMPTS = [
    Prompt(index=index, content=f"{word}=", columns={"answer": word}) for index, word in enumerate("ab")
]
ROLLOUTS = [Rollout((9,), (index, 1), (-1.0, -1.0), (), True, "fake") for index in range(4)]


class FakeTokenizer:
    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return f"text {ids[0]}"


class FakePool:
    def __init__(self, *columns: list[float | None], failure: str | None = None) -> None:
        self.requests: list[RewardRequest] = []
        self.columns = columns
        self.failure = failure

    async def score(self, request: RewardRequest) -> RewardMatrix:
        self.requests.append(request)
        failure = RewardFailure(name="accuracy", reason=self.failure or "", num_samples=4, sample={})
        return RewardMatrix(
            names=("accuracy",),
            values=tuple(zip(*self.columns, strict=True)),
            failures=(failure,) if self.failure else (),
            metrics={"mine": 1.0},
        )


def scorer(pool: Any) -> Scorer:
    return Scorer(pool, RUN, tokenizer=FakeTokenizer())  # type: ignore[arg-type]


async def test_each_completion_is_scored_with_the_columns_of_its_own_prompt() -> None:
    pool = FakePool([1.0, None, 0.0, 0.5])
    scores = await scorer(pool).score(PROMPTS, ROLLOUTS, step=3)
    assert scores.rewards.shape == (4, 1)
    assert math.isnan(scores.rewards[1, 0])
    assert torch.equal(scores.rewards[[0, 2, 3], 0], torch.tensor([1.0, 0.0, 0.5]))
    (request,) = pool.requests
    assert request.columns == {"answer": ["a", "a", "b", "b"]}
    assert request.prompts == ["a=", "a=", "b=", "b="]
    assert request.completions == [f"text {index}" for index in range(4)]
    assert (request.step, request.total_steps) == (3, 5)


async def test_functions_that_fail_on_everything_again_and_again_end_the_run() -> None:
    pool = FakePool([None] * 4, failure="KeyError: 'answer'")
    target = scorer(pool)
    for step in range(MAX_UNSCORED_STEPS - 1):
        await target.score(PROMPTS, ROLLOUTS, step=step)
    with pytest.raises(UserError, match=r"accuracy failed on every completion .* KeyError: 'answer'"):
        await target.score(PROMPTS, ROLLOUTS, step=MAX_UNSCORED_STEPS)


async def test_one_good_step_forgives_the_bad_ones_before() -> None:
    pool = FakePool([None] * 4, failure="TimeoutError")
    target = scorer(pool)
    for step in range(3 * MAX_UNSCORED_STEPS):
        is_good = step % MAX_UNSCORED_STEPS == 0
        pool.columns = ([1.0] * 4,) if is_good else ([None] * 4,)
        await target.score(PROMPTS, ROLLOUTS, step=step)


async def test_functions_that_do_not_apply_are_no_failure() -> None:
    target = scorer(FakePool([None] * 4))
    for step in range(2 * MAX_UNSCORED_STEPS):
        scores = await target.score(PROMPTS, ROLLOUTS, step=step)
        assert scores.rewards.isnan().all()
