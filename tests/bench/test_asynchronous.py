"""The bench of asynchronous training: its draws, its simulation and what it makes of runs."""

import asyncio
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_api.contract.progress import EngineCounts
from grpo_api.contract.versions import PolicyVersion
from grpo_api.resolve import resolve
from grpo_api.v1alpha1.job import parse_job
from grpo_async.cases import CASES, WARM_UP_STEPS, Case, Way
from grpo_async.draws import BoundedPareto
from grpo_async.engine_runs import share_across
from grpo_async.long_answers import share_of_answer
from grpo_async.options import parse_options
from grpo_async.results import CaseResult, Measured, costs_of, json_line, simulate, table
from grpo_async.scripted_engines import ScriptedEngines
from grpo_async.simulation import Completion, Costs, Simulation
from grpo_async.steps import Logged, Run, speed
from grpo_async.taught_policy import write_taught_policy
from grpo_async.tool import share_of_letters
from grpo_bench.machine import circumstances
from grpo_runtime.report.samples import Sample, SampleTables
from grpo_runtime.report.sink import StepRecord
from grpo_runtime.rollouts.interface import GenerateRequest
from grpo_runtime.rollouts.staleness import StalenessBound

PARETO = BoundedPareto(lowest=0.2, highest=5.0, shape=1.0)
NO_COSTS = Costs(train=0.0, sync=0.0, read=0.0)


def test_a_bounded_pareto_has_the_bounds_the_tail_and_the_mean_of_its_formulas() -> None:
    draws = [PARETO.of(seed) for seed in range(20_000)]
    assert 0.2 <= min(draws) < 0.21
    assert 4.5 < max(draws) <= 5.0
    share_above_1 = (0.2 / 1.0 - 0.2 / 5.0) / (1 - 0.2 / 5.0)
    assert statistics.fmean(draw > 1.0 for draw in draws) == pytest.approx(share_above_1, abs=0.01)
    mean = 0.2 * math.log(5.0 / 0.2) / (1 - 0.2 / 5.0)
    assert PARETO.mean == pytest.approx(mean, rel=1e-3)
    assert statistics.fmean(draws) == pytest.approx(mean, rel=0.03)


def test_a_seed_decides_its_draw_in_every_process_and_version() -> None:
    assert PARETO.of(7) == pytest.approx(0.3004600888636382, rel=1e-12)
    assert PARETO.of(2**62 + 15) != PARETO.of(2**62 + 14)


def seconds_of(durations: Sequence[Sequence[float]], **changes: Any) -> list[float]:
    """When the steps of a run end; `durations` are seconds of each completion, by ordinal of its group."""
    settings: dict[str, Any] = {"max_staleness": 0, "groups_per_step": 2, "costs": NO_COSTS} | changes
    bound = StalenessBound(
        max_staleness=settings.pop("max_staleness"), groups_per_step=settings.pop("groups_per_step")
    )
    is_tool = settings.pop("is_tool", False)
    found = Simulation(
        completions=lambda ordinal: [
            Completion(tool_seconds=seconds) if is_tool else Completion(engine_seconds=seconds)
            for seconds in durations[ordinal]
        ],
        bound=bound,
        steps=len(durations) // bound.groups_per_step,
        **settings,
    ).run()
    return list(found.ends)


def test_a_simulated_synchronous_step_is_sync_longest_completion_and_training() -> None:
    costs = Costs(train=2.0, sync=0.5, read=0.1)
    durations = [[1.0, 3.0], [2.0], [4.0], [1.0]]
    assert seconds_of(durations, costs=costs) == [0.5 + 3 + 2, 0.5 + 3 + 2 + 0.5 + 4 + 2]


def test_completions_wait_for_a_place_at_an_engine_and_tools_need_none() -> None:
    durations = [[1.0, 1.0], [1.0, 1.0]]
    assert seconds_of(durations, num_places=2) == [2.0]
    assert seconds_of(durations, num_places=2, is_tool=True) == [1.0]


def test_simulated_groups_of_even_length_are_trained_one_update_after_the_weights_that_sampled_them() -> None:
    durations = [[1.0]] * 2 * 12
    # a step begins when the one before has ended, and a second after the one before that
    for train, step in ((3.0, 3.0), (0.25, (1.0 + 0.25) / 2)):
        costs = Costs(train=train, sync=0.0, read=0.0)
        ends = seconds_of(durations, max_staleness=1, costs=costs)
        # after the first groups, which all begin together
        assert (ends[9] - ends[1]) / 8 == pytest.approx(step)


def test_one_long_group_holds_a_simulated_run_up_only_when_it_is_due() -> None:
    durations = [[10.0], [1.0], *[[1.0]] * 14]
    costs = Costs(train=1.0, sync=0.0, read=0.0)
    ends = seconds_of(durations, max_staleness=2, costs=costs)
    assert ends[:2] == [2.0, 3.0]
    assert ends[2] == 11.0


@pytest.mark.parametrize("name", ["a", "b"])
def test_no_simulated_group_is_older_than_allowed_and_older_ones_make_a_run_faster(name: str) -> None:
    case, costs = CASES[name], Costs(train=0.1, sync=0.05, read=0.02)
    speeds = []
    for way in (way for way in case.ways if not way.fields):
        found = simulate(case, way, seed=0, costs=costs, steps=30)
        assert 0 <= found.staleness <= way.max_staleness
        speeds.append(speed(found.ends, steps=25, warm_up=WARM_UP_STEPS))
    assert speeds == sorted(speeds)
    assert speeds[-1] > 2 * speeds[0]


def logged(*seconds: float, reward: float = 0.5, **values: float) -> Run:
    """A run with steps of this length."""
    ends = [sum(seconds[: number + 1]) for number in range(len(seconds))]
    return Run.of(
        [
            Logged(time=100 + end, values={"step_time": length, "reward": reward, **values})
            for end, length in zip(ends, seconds, strict=True)
        ]
    )


def test_the_reward_at_a_moment_is_that_of_the_steps_before_it() -> None:
    run = logged(*[1.0] * 10)
    steps = [replace(step, values={**step.values, "reward": number}) for number, step in enumerate(run.steps)]
    run = Run.of(steps)
    assert run.seconds_until(10) == 10
    assert run.reward_after(8.5) == statistics.fmean([3, 4, 5, 6, 7])
    assert run.reward_after(99) == statistics.fmean([5, 6, 7, 8, 9])


def result_of(case: Case, *lengths: float) -> CaseResult:
    """A pair of runs for each way, whose steps all have this length."""
    runs = {}
    for way, seconds in zip(case.ways, lengths, strict=True):
        run = logged(*[seconds] * case.steps_of(way), **{"time/train_seconds": 0.1, "time/sync_seconds": 0.1})
        simulated = simulate(case, way, seed=0, costs=costs_of(case, run), steps=case.steps_of(way))
        measured = Measured(case=case, way=way, steps=case.steps, run=run, simulated=simulated)
        runs[way.name] = [measured, measured]
    return CaseResult(case=case, runs=runs, load_averages=[0.5, 2.25])


def test_a_table_has_a_row_for_each_way_and_a_miss_is_named() -> None:
    result = result_of(CASES["a"], 4.0, 2.5, 1.0)
    assert result.ratios("maxStaleness 2") == pytest.approx([1.6, 1.6])
    rows = table(result).splitlines()
    assert [row.split("  ")[0] for row in rows[2:]] == ["synchronous", "maxStaleness 2", "maxStaleness 4"]
    assert "1.60 to 1.60  >= 1.8" in rows[3]
    misses = result.misses()
    assert misses[0] == "a, maxStaleness 2: 1.60 times as fast, and not 1.8 times"
    assert not [miss for miss in misses if miss.startswith("a, synchronous")]
    line = json.loads(json_line(result, circumstances=circumstances()))
    assert (line["case"], line["load_averages"], line["misses"]) == ("a", [0.5, 2.2], misses)
    assert len(line["ways"]["synchronous"]["runs"][0]["ends"]) == CASES["a"].steps


def test_the_ways_of_a_case_differ_in_async_and_their_steps_alone() -> None:
    for case in CASES.values():
        jobs = [case.job(way, seed=3) for way in case.ways]
        for job, way in zip(jobs, case.ways, strict=True):
            run_config = resolve(parse_job(job))
            assert run_config.algorithm.seed == 3
            found = run_config.asynchronous
            assert (found.max_staleness if found else 0) == way.max_staleness
            assert case.steps_of(way) >= case.steps + way.max_staleness
            for name in ("steps", "everySteps"):
                for section in ("algorithm", "checkpoint"):
                    job["spec"][section].pop(name, None)
            job["spec"].pop("async", None)
        assert all(job == jobs[0] for job in jobs)


def test_a_mode_is_compared_with_the_defaults_of_its_staleness_and_those_with_the_synchronous_way() -> None:
    case = CASES["d"]
    names = {way.name: case.beside(way).name for way in case.ways}
    assert names["maxStaleness 4, pauseMode Abort"] == "maxStaleness 4"
    assert names["maxStaleness 1, kvCache Keep"] == "maxStaleness 1"
    assert {names[name] for name in ("maxStaleness 1", "maxStaleness 4", "synchronous")} == {"synchronous"}
    runs = {}
    for way in case.ways:
        seconds = 1.0 if not way.max_staleness or way.fields else 0.5
        run = logged(*[seconds] * case.steps_of(way), **{"sampling/mismatch_kl/k3": 0.012})
        runs[way.name] = [Measured(case=case, way=way, steps=case.steps, run=run, simulated=None)]
    result = CaseResult(case=case, runs=runs, load_averages=[0.5, 2.25])
    assert result.ratios("maxStaleness 4") == pytest.approx([2.0])
    assert result.ratios("maxStaleness 4, pauseMode Wait") == pytest.approx([0.5])
    title, *rows = table(result).splitlines()[1:]
    assert "KL k3" in title
    assert "paused" not in title
    assert "of simulation" not in title
    assert all(" 0.012 " in row for row in rows)


def test_share_across_is_of_the_tokens_of_completions_within_which_weights_changed(tmp_path: Path) -> None:
    assert share_across(tmp_path) is None
    samples = [
        Sample(
            group=0,
            prompt="a=",
            completion="aa",
            rewards={"answer": 1.0},
            reward=1.0,
            advantage=0.0,
            num_tokens=num_tokens,
            is_terminated=False,
            policy_versions=versions,
            engine="engine-0",
        )
        for num_tokens, versions in ((20, "1.4"), (10, "1.4 1.4"), (10, "1.4 1.5"))
    ]
    record = StepRecord(step=5, attempt=1, time=0.0, values={}, engines=EngineCounts(), samples=samples)
    SampleTables(tmp_path, start_step=0).write(record)
    assert share_across(tmp_path) == 0.25


def test_the_answer_is_written_again_and_again() -> None:
    found = share_of_answer(["cbacbac", "cbaabc", "", "zzzz"], answer=["cba"] * 4)
    assert found == pytest.approx([1.0, 4 / 6, 0.0, 0.0])


def test_a_policy_is_taught_to_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write_taught_policy(tmp_path / name, task="copy", steps=2)
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "other" / file.name).read_bytes()


async def test_scripted_engines_take_the_lengths_of_the_seeds_and_say_which_weights_sampled_them() -> None:
    case, way = CASES["b"], Way(max_staleness=2)
    assert case.scripted is not None
    scripted = replace(
        case.scripted, seconds_per_token=1e-5, sync_seconds=0.0, lengths=replace(PARETO, lowest=3, highest=9)
    )
    engines = ScriptedEngines(scripted, resolve(parse_job(case.job(way, seed=0))))
    weights: Any = None
    await engines.sync(weights, version=PolicyVersion(1, 0), probe=None)
    requests = [GenerateRequest((4,), seed=seed) for seed in range(40)]
    rollouts = await asyncio.wait_for(engines.generate(requests), 10)
    assert [len(rollout.completion_ids) for rollout in rollouts] == [
        scripted.num_tokens(s) for s in range(40)
    ]
    assert {rollout.engine for rollout in rollouts} == {"engine-0", "engine-1"}
    assert {span.version for rollout in rollouts for span in rollout.versions} == {PolicyVersion(1, 0)}


def test_the_reward_counts_small_letters_of_what_the_policy_wrote() -> None:
    assert share_of_letters(["ab.cd", "A1.bc", "..", "?."]) == [1.0, 0.5, 0.0, 0.0]


def test_too_few_steps_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options("", ["--steps", str(WARM_UP_STEPS)])
    assert "the first 5 are not counted" in capsys.readouterr().err
    options = parse_options("", ["--cases", "c,b", "--pairs", "1"])
    assert (options.cases, options.num_pairs, options.steps) == (("c", "b"), 1, None)
