"""The rounds of a step: which completions are asked for. No other process."""

from pathlib import Path

from coordinated_run import FakeRun
from pod_builder import run_config


async def test_groups_that_are_sampled_in_place_of_dropped_ones_have_seeds_of_their_own(
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
