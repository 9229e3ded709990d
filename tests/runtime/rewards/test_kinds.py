"""What each kind of reward calls, and that a new kind needs a row and nothing else."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pod_builder import run_config
from reward_matrix import put_together

from grpo_api.v1alpha1.spec import RewardSpec
from grpo_runtime.process.user_code import FunctionFile
from grpo_runtime.rewards.chunk import Column
from grpo_runtime.rewards.kinds import REWARD_KINDS, RewardKind, kind_of, reward_functions
from grpo_runtime.rewards.pool import RewardPool
from grpo_runtime.rewards.types import (
    BuiltinFunction,
    ImportedFunction,
    RewardFunction,
    RewardRequest,
    RewardService,
)


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
            {"name": "theirs", "function": "package.module:score", "timeoutSeconds": 5, "workers": 2},
        ],
    )
    long, boxed, mine, theirs = reward_functions(run, volumes_dir=tmp_path)
    assert isinstance(long.source, BuiltinFunction) and long.source.name == "length"
    options = long.source.options
    assert (options.max_tokens, options.overlong_tokens, options.seed) == (100, 20, 9)
    assert long.max_failure_share == 0.25
    assert boxed.source.options.pattern == "boxed"
    assert mine.source == FunctionFile(
        path=tmp_path / "configmaps" / "rewards" / "code.py",
        function="score",
        place="key code.py of ConfigMap rewards",
    )
    assert theirs.source == ImportedFunction(path="package.module:score")
    assert (theirs.timeout_seconds, theirs.workers) == (5, 2)
    assert (mine.workers, mine.max_failing_steps) == (1, 10)
    assert [kind_of(function).is_user_code for function in (boxed, mine, theirs)] == [False, True, True]


def test_a_service_finds_its_secret_where_it_is_mounted(tmp_path: Path) -> None:
    services = [{"url": "https://judge/score", "headersSecret": "judge"}, {"url": "http://plain"}]
    rewards = [{"name": f"r{index}", "service": service} for index, service in enumerate(services)]
    run = run_config(rewards=rewards)
    judge, plain = reward_functions(run, volumes_dir=tmp_path)
    assert judge.source == RewardService(
        url="https://judge/score",
        job=run.job.uid,
        secret="judge",
        folder=tmp_path / "secrets" / "judge",
    )
    assert plain.source == RewardService(url="http://plain", job=run.job.uid)
    assert judge.workers == 16


def test_the_kinds_are_the_fields_of_which_a_reward_has_one() -> None:
    fields = RewardSpec.model_fields
    assert set(REWARD_KINDS) <= set(fields)
    others = {"name", "weight", "pattern", "overlong_tokens", "timeout_seconds", "workers"}
    others |= {"max_failure_share", "max_failing_steps"}
    assert set(REWARD_KINDS) == set(fields) - others


@dataclass(frozen=True, kw_only=True)
class Oracle:
    """What a kind of this test calls."""

    answer: str


class OracleCaller:
    outage = None

    def __init__(self, function: RewardFunction) -> None:
        self._answer = function.source.answer

    async def start(self) -> None: ...

    async def score(self, request: RewardRequest) -> Column:
        return Column(values=[float(text == self._answer) for text in request.completions])

    async def close(self) -> None: ...


async def test_a_new_kind_of_reward_is_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row = RewardKind(
        source=Oracle,
        of_spec=lambda reward, run: Oracle(answer=cast(Any, reward).oracle),
        caller=OracleCaller,
    )
    monkeypatch.setitem(REWARD_KINDS, "oracle", row)
    limits = {"timeout_seconds": 1.0, "workers": 1, "max_failure_share": 1.0, "max_failing_steps": 10}
    others = dict.fromkeys(REWARD_KINDS)
    reward = SimpleNamespace(name="knows", **others | {"oracle": "42"}, **limits)
    functions = reward_functions(cast(Any, SimpleNamespace(rewards=[reward])), volumes_dir=tmp_path)
    chunk = RewardRequest(
        prompts=["?"] * 2,
        completions=["42", "41"],
        completion_ids=[[1], [2]],
        columns={},
        step=0,
        total_steps=1,
    )
    async with RewardPool(functions) as pool:
        await pool.try_out(chunk)
        matrix = put_together(pool, [await pool.submit(chunk)], step=0)
    assert (matrix.names, matrix.values) == (("knows",), ((1.0,), (0.0,)))
