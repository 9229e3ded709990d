"""Where the seconds of a step go, and which split of GPUs is better."""

import pytest

from grpo_runtime.report.phases import Split, StepSeconds, better_split, idle_seconds, step_seconds


def step(total: float, **phases: float) -> dict[str, float]:
    return {"step_time": total, **{f"time/{name}_seconds": seconds for name, seconds in phases.items()}}


def test_phases_are_medians_without_the_first_step_and_the_rest_is_other() -> None:
    steps = [step(90, generate=80), *(step(10, sync=1, generate=g, train=3) for g in (4, 5, 6))]
    found = step_seconds(steps)
    assert found == StepSeconds(10, {"sync": 1, "generate": 5, "train": 3, "other": 1})


def test_a_run_of_one_step_is_that_step_and_one_of_none_has_no_seconds() -> None:
    assert step_seconds([step(4, train=3)]) == StepSeconds(4, {"train": 3, "other": 1})
    assert step_seconds([{"reward": 1.0}]) is None


def test_each_side_is_idle_while_the_other_works_and_while_rewards_are_computed() -> None:
    seconds = StepSeconds(10, {"sync": 1, "generate": 5, "score": 1, "train": 3, "other": 0})
    assert idle_seconds(seconds) == {"trainer": 6, "engines": 4}


@pytest.mark.parametrize(
    ("generate", "train", "gpus_per_engine", "expected"),
    [
        # 4 x 8 s of sampling and 4 x 2 s of training on 8 GPUs: the shares go as their square roots, 2 to 1
        (8.0, 2.0, 1, Split(3, 5, 32 / 5 + 8 / 3)),
        # engines of two GPUs: of the three splits only this one is better
        (8.0, 2.0, 2, Split(2, 3, 8 * 2 / 3 + 2 * 4 / 2)),
        (5.0, 5.0, 1, None),
    ],
)
def test_gpus_go_where_the_time_goes(
    generate: float, train: float, gpus_per_engine: int, expected: Split | None
) -> None:
    seconds = StepSeconds(generate + train, {"generate": generate, "train": train, "other": 0})
    found = better_split(
        seconds, num_ranks=4, num_engines=4 // gpus_per_engine, gpus_per_engine=gpus_per_engine
    )
    assert found == expected


def test_two_gpus_have_one_split() -> None:
    seconds = StepSeconds(10, {"generate": 9, "train": 1})
    assert better_split(seconds, num_ranks=1, num_engines=1, gpus_per_engine=1) is None
