"""The rounds of a step: which completions are asked for. No other process."""

import itertools
from pathlib import Path

from coordinated_run import COMPLETION_TOKENS, FakeRun
from pod_builder import run_config


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


def seeds_of(run: FakeRun) -> list[int]:
    return [request.seed for requests in run.engines.requests for request in requests]
