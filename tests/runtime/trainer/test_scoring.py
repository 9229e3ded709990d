"""Rewards of a step, from a pool that answers as told."""

import math
from pathlib import Path
from typing import Any

import torch
from pod_builder import run_config

from grpo_runtime.data.prompt import Prompt
from grpo_runtime.rewards.types import RewardCode, RewardMatrix, RewardRequest
from grpo_runtime.rollout.interface import Rollout
from grpo_runtime.trainer.scoring import Scorer, reward_functions

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
    def __init__(self, *columns: list[float | None]) -> None:
        self.requests: list[RewardRequest] = []
        self.columns = columns

    async def score(self, request: RewardRequest) -> RewardMatrix:
        self.requests.append(request)
        return RewardMatrix(
            names=("accuracy",),
            values=tuple(zip(*self.columns, strict=True)),
            failures=(),
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


async def test_functions_that_do_not_apply_are_no_failure() -> None:
    scores = await scorer(FakePool([None] * 4)).score(PROMPTS, ROLLOUTS, step=0)
    assert scores.rewards.isnan().all()


def test_every_reward_of_a_run_brings_its_deadline_its_share_and_what_its_function_needs(
    tmp_path: Path,
) -> None:
    run = run_config(
        algorithm={"steps": 5, "seed": 9},
        sampling={"maxTokens": 100},
        engine={"maxModelLen": 128},
        rewards=[
            {"name": "long", "builtin": "length", "overlongTokens": 20, "maxFailureShare": 0.25},
            {"name": "boxed", "builtin": "regex", "pattern": "boxed"},
            {"name": "mine", "configMap": {"name": "rewards", "key": "code.py", "function": "score"}},
            {"name": "theirs", "function": "package.module:score", "timeoutSeconds": 5},
        ],
    )
    long, boxed, mine, theirs = reward_functions(run, volumes_dir=tmp_path)
    assert (long.builtin, long.options.max_tokens, long.options.overlong_tokens) == ("length", 100, 20)
    assert (long.max_failure_share, long.options.seed) == (0.25, 9)
    assert boxed.options.pattern == "boxed"
    assert mine.code == RewardCode(
        path=tmp_path / "configmaps" / "rewards" / "code.py",
        function="score",
        place="key code.py of ConfigMap rewards",
    )
    assert (theirs.function, theirs.timeout_seconds) == ("package.module:score", 5)
