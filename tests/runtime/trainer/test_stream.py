"""The rounds of a step: which completions are asked for. No other process."""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from coordinated_run import COMPLETION_TOKENS, FakeRun
from pod_builder import run_config

from grpo_api.contract.left_out import MOST_FAILED_IN_A_ROW, LeftOutEnvironment
from grpo_runtime.rollouts.agents.environments import environment_of
from grpo_runtime.rollouts.collect import EngineSource, Take
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import Engines, FunctionFailedError, GivenUp


async def test_groups_that_are_sampled_in_place_of_filtered_ones_have_seeds_of_their_own(
    tmp_path: Path,
) -> None:
    algorithm = {
        "steps": 3,
        "promptsPerStep": 2,
        "groupSize": 2,
        "seed": 7,
        "dynamicSampling": {"maxRounds": 3},
    }
    # of a round of two groups the first one teaches nothing, and so does that of a round of one
    run = FakeRun(tmp_path, run_config(algorithm=algorithm), rewards=[[1.0], [1.0], [0.0], [1.0]])
    assert await run.train()
    assert [len(requests) for requests in run.engines.requests] == [4, 2, 2] * 3
    seeds = [request.seed for requests in run.engines.requests for request in requests]
    assert len(set(seeds)) == len(seeds) == 24
    assert [report["dynamic_sampling/rounds"] for report in run.reporter.steps.values()] == [3.0] * 3


async def test_in_asynchronous_training_samples_are_asked_for_before_the_step_that_trains_them(
    tmp_path: Path,
) -> None:
    algorithm = {"steps": 4, "promptsPerStep": 2, "groupSize": 2, "seed": 7}
    rewards = [[1.0], [0.0]]
    run = FakeRun(
        tmp_path, run_config(algorithm=algorithm, **{"async": {"maxStaleness": 1}}), rewards=rewards
    )
    assert await run.train()
    assert len(run.engines.requests) == 8, "one call of the engines for each group"
    staleness = [report["async/staleness/mean"] for report in run.reporter.steps.values()]
    assert staleness == [0.0, 1.0, 1.0, 1.0]
    synchronous = FakeRun(tmp_path / "synchronous", run_config(algorithm=algorithm), rewards=rewards)
    assert await synchronous.train()
    assert seeds_of(run) == seeds_of(synchronous)


async def test_who_waited_in_a_step_is_reported_in_asynchronous_training_alone(tmp_path: Path) -> None:
    algorithm = {"steps": 2, "promptsPerStep": 2, "groupSize": 2}
    ticks = itertools.count()

    def clock() -> float:
        """Each phase lasts a second."""
        return float(next(ticks))

    config = run_config(algorithm=algorithm, **{"async": {"maxStaleness": 1}})
    run = FakeRun(tmp_path / "ahead", config, rewards=[[1.0], [0.0]], clock=clock)
    assert await run.train()
    report = run.reporter.steps[2]
    seconds = report["step_time"]
    assert {name: one for name, one in report.items() if "_idle_" in name or "_busy_" in name} == {
        "async/trainer_idle_seconds": 2.0,
        "async/engine_idle_seconds": 0.25,
        "async/engine_idle_share": 0.25 / seconds,
        "async/tokens_per_busy_second": 4 * COMPLETION_TOKENS / (seconds - 0.25),
    }
    run = FakeRun(tmp_path / "synchronous", run_config(algorithm=algorithm), rewards=[[1.0], [0.0]])
    assert await run.train()
    assert [name for name in run.reporter.steps[2] if name.startswith("async/")] == []


@dataclass(frozen=True)
class GivingUp:
    """Engines, but the first samples of groups are given up, as many as `num_of` says by their numbers."""

    engines: Engines
    num_of: Mapping[int, int]

    async def sample(self, groups: Sequence[Group], *, take: Take, stays_awake: bool = False) -> None:
        for group in groups:
            for sample in range(self.num_of.get(group.number, 0)):
                take(group, sample, GivenUp("the agent raised"))
        await EngineSource(self.engines).sample(groups, take=take, stays_awake=stays_awake)


FUNCTION = {"rolloutFunction": {"function": "a:b"}, "maxTokens": 4}
"""Nobody starts it here."""


@pytest.mark.parametrize("asynchronous", [{}, {"async": {"maxStaleness": 1}}], ids=["synchronous", "async"])
async def test_a_group_with_half_of_its_samples_is_trained_and_one_with_fewer_has_another_in_its_place(
    tmp_path: Path, asynchronous: dict[str, Any]
) -> None:
    """Of the groups 0 and 1, with which it begins, the first has two of four samples and the second one."""
    algorithm = {"steps": 1, "promptsPerStep": 2, "groupSize": 4, "seed": 7}
    config = run_config(algorithm=algorithm, sampling=FUNCTION, **asynchronous)
    rewards = [[0.25], [0.75], [0.5], [1.0]]
    source = partial(GivingUp, num_of={0: 2, 1: 3})
    run = FakeRun(tmp_path, config, rewards=rewards, source=source)
    assert await run.train()
    # the groups 0 and 2
    assert [(group.number, len(group.completions)) for group in run.scorer.scored] == [(0, 2), (2, 4)]
    report = run.reporter.steps[1]
    assert (report["agents/given_up_episodes"], report["agents/left_out_groups"]) == (5.0, 1.0)
    kept = [(sample.group, sample.given_up) for sample in report["samples"]]
    assert kept == [
        *[(0, "")] * 2, *[(0, "the agent raised")] * 2,
        *[(1, "")] * 4,
        *[(2, "the agent raised")] * 3,
    ]  # fmt: skip
    # no reward is there that nobody gave
    assert report["rewards/accuracy/mean"] == pytest.approx(
        (0.25 + 0.75 + sum(row[0] for row in rewards)) / 6
    )
    batch = run.learner.batches[0]
    assert batch.group_sizes == [2, 4]
    half = 0.25 / (0.125**0.5 + 1e-4)
    assert batch.advantages.tolist()[:2] == pytest.approx([-half, half])


async def test_where_no_group_can_be_sampled_the_job_ends_with_the_failure(tmp_path: Path) -> None:
    source = partial(GivingUp, num_of=dict.fromkeys(range(99), 3))
    algorithm = {"steps": 1, "promptsPerStep": 2, "groupSize": 4}
    run = FakeRun(
        tmp_path, run_config(algorithm=algorithm, sampling=FUNCTION), rewards=[[0.0]], source=source
    )
    with pytest.raises(FunctionFailedError, match="the agent raised"):
        await run.train()
    assert len(run.engines.requests) * 2 == MOST_FAILED_IN_A_ROW


@dataclass(frozen=True)
class WithoutAgents:
    """Engines, but every episode of some environments is given up."""

    engines: Engines
    environment: Callable[[Group], str]
    failing: Collection[str]

    async def sample(self, groups: Sequence[Group], *, take: Take, stays_awake: bool = False) -> None:
        for group in groups:
            for sample in group.missing if self.environment(group) in self.failing else ():
                take(group, sample, GivenUp("the agent raised"))
        await EngineSource(self.engines).sample(groups, take=take, stays_awake=stays_awake)


def run_of_two_environments(folder: Path, failing: Collection[str], asynchronous: dict[str, Any]) -> FakeRun:
    """Of ten groups nine are of the first environment, `go`, and one of `chess`."""
    config = run_config(
        algorithm={"steps": 4, "promptsPerStep": 2, "groupSize": 2, "seed": 7},
        environments=[
            {"name": "go", "function": "a:b", "weight": 9.0},
            {"name": "chess", "function": "a:b"},
        ],
        **asynchronous,
    )
    environment = environment_of(config)
    assert environment is not None
    source = partial(WithoutAgents, environment=environment, failing=failing)
    return FakeRun(folder, config, rewards=[[1.0], [0.0]], source=source)


@pytest.mark.parametrize("asynchronous", [{}, {"async": {"maxStaleness": 1}}], ids=["synchronous", "async"])
async def test_where_an_environment_always_fails_the_others_are_trained_and_it_is_reported(
    tmp_path: Path, asynchronous: dict[str, Any]
) -> None:
    run = run_of_two_environments(tmp_path, ["go"], asynchronous)
    assert await run.train()
    assert len(run.scorer.scored) == 8
    reported = run.reporter.steps[4]
    [failing] = LeftOutEnvironment.of_metrics(
        {name: value for name, value in reported.items() if isinstance(value, float)}
    )
    left_out = [int(report["agents/left_out_groups"]) for report in run.reporter.steps.values()]
    assert (failing.name, failing.num_groups) == ("go", sum(left_out))
    assert max(left_out) > MOST_FAILED_IN_A_ROW, "in one step more than would end it"


@pytest.mark.parametrize("asynchronous", [{}, {"async": {"maxStaleness": 1}}], ids=["synchronous", "async"])
async def test_where_all_environments_fail_the_job_ends_with_the_failure(
    tmp_path: Path, asynchronous: dict[str, Any]
) -> None:
    run = run_of_two_environments(tmp_path, ["go", "chess"], asynchronous)
    with pytest.raises(FunctionFailedError, match="the agent raised"):
        await run.train()
    assert not run.scorer.scored


def seeds_of(run: FakeRun) -> list[int]:
    return [request.seed for requests in run.engines.requests for request in requests]
