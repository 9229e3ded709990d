"""Who waits for whom in asynchronous training, and the split of GPUs that it suggests."""

import pytest

from grpo_runtime.report.metrics_file import MetricsRecord
from grpo_runtime.report.overlap import (
    IdleEngines,
    Overlap,
    better_overlapped_split,
    describe_waits,
    measured,
    overlap,
    pictured,
    wait_metrics,
)
from grpo_runtime.report.phases import Split
from grpo_runtime.rollouts.interface import Recomputed

PHASES = {"time/sync_seconds": 1.0, "time/generate_seconds": 2.0, "time/train_seconds": 6.0}


def test_idle_seconds_are_what_the_trainer_waits_and_the_mean_over_all_engines() -> None:
    recomputed = Recomputed(num_tokens=300, num_preemptions=2)
    idle = IdleEngines({"a": 4.0, "b": 2.0}, num_engines=3, recomputed=recomputed)
    assert wait_metrics({"step_time": 10.0, **PHASES}, idle=idle, num_tokens=400) == {
        "async/trainer_idle_seconds": 3.0,
        "async/engine_idle_seconds": 2.0,
        "async/engine_idle_share": 0.2,
        "async/tokens_per_busy_second": 50.0,
        "async/recomputed_tokens": 300.0,
        "async/preemptions": 2.0,
    }


def test_an_engine_is_idle_no_longer_than_the_step_and_one_that_always_was_has_no_rate() -> None:
    """The end of a pause that began between two steps counts as a whole."""
    metrics = wait_metrics({"step_time": 2.0}, idle=IdleEngines({"a": 5.0}, num_engines=1), num_tokens=8)
    assert metrics == {
        "async/trainer_idle_seconds": 0.0,
        "async/engine_idle_seconds": 2.0,
        "async/engine_idle_share": 1.0,
    }


def test_without_engines_only_the_trainer_is_idle() -> None:
    metrics = wait_metrics({"step_time": 10.0, **PHASES}, idle=IdleEngines({}, num_engines=0), num_tokens=8)
    assert metrics == {"async/trainer_idle_seconds": 3.0}


def step(total: float, *, groups: float = 0.0, idle: float = 0.0, paused: float = 0.0) -> dict[str, float]:
    return {
        "step_time": total,
        "time/generate_seconds": groups,
        "time/sync_seconds": 1.0,
        "time/train_seconds": total - groups - 2.0,
        "async/trainer_idle_seconds": groups + 1.0,
        "async/engine_idle_seconds": idle,
        "sync/paused_seconds": paused,
    }


def record(number: int, *, attempt: int = 1, **seconds: float) -> MetricsRecord:
    return MetricsRecord(attempt=attempt, step=number, time=0.0, values=step(10.0, **seconds))


def test_shares_of_the_time_are_those_of_the_seconds_of_all_steps() -> None:
    found = overlap([step(10.0, groups=2.0, idle=3.0, paused=1.0), step(30.0, idle=1.0, paused=2.0)])
    assert found == Overlap(
        step_seconds=20.0,
        shares={
            "training": pytest.approx(34 / 40),
            "waiting for groups": 2 / 40,
            "waiting for a weight sync": 2 / 40,
            "other": pytest.approx(2 / 40),
            "sampling": 36 / 40,
            "waiting for work": 1 / 40,
            "paused for weights": 3 / 40,
        },
    )
    assert (found.trainer_waits, found.engines_wait) == (2 / 40, 1 / 40)


def test_the_first_step_of_each_attempt_and_those_from_the_journal_say_nothing_about_waits() -> None:
    replayed = MetricsRecord(attempt=2, step=4, time=0.0, values={"step_time": 1.0})
    records = [record(1), record(2), record(3, attempt=2), replayed, record(5, attempt=2)]
    assert [one.step for one in measured(records)] == [2, 5]
    assert [one.step for one in measured(records[:1])] == [1]
    assert measured([replayed]) == []


def test_many_steps_are_pictured_as_means_of_several_at_the_step_in_their_middle() -> None:
    records = [record(number, groups=float(number % 3)) for number in range(1, 8)]
    means = pictured(records, most=3)
    assert [one.step for one in means] == [2, 5, 7]
    assert [one.values["waiting for groups"] for one in means] == pytest.approx([0.1, 0.1, 0.1])
    assert [one.step for one in pictured(records, most=7)] == [1, 2, 3, 4, 5, 6, 7]


def waiting(*, trainer: float = 0.0, engines: float = 0.0) -> Overlap:
    return Overlap(
        step_seconds=10.0,
        shares={
            "training": 1 - trainer,
            "waiting for groups": trainer,
            "waiting for a weight sync": 0.0,
            "other": 0.0,
            "sampling": 1 - engines,
            "waiting for work": engines,
            "paused for weights": 0.0,
        },
    )


@pytest.mark.parametrize(
    ("found", "num_ranks", "num_engines", "sentence"),
    [
        # 3 engines busy for .62 of the time do what 1.86 do
        (
            waiting(engines=0.38),
            1,
            3,
            "Engines waited for the trainer 38 % of the time: 2 engines would do what 3 did.",
        ),
        (
            waiting(engines=0.5),
            1,
            2,
            "Engines waited for the trainer 50 % of the time: 1 engine would do what 2 did.",
        ),
        # 2 / .75 processes keep the engine busy
        (
            waiting(engines=0.25),
            2,
            1,
            "Engines waited for the trainer 25 % of the time: 3 training processes instead of 2 would keep "
            "them busy, if training becomes faster in proportion.",
        ),
        # 1 / .49 is 2.04, and 2 are enough
        (
            waiting(engines=0.51),
            1,
            1,
            "Engines waited for the trainer 51 % of the time: 2 training processes instead of 1 would keep "
            "them busy, if training becomes faster in proportion.",
        ),
        # 2 x .95 / .45 engines keep the trainer busy
        (
            waiting(trainer=0.55, engines=0.05),
            4,
            2,
            "The trainer waited for engines 55 % of the time: 5 engines instead of 2 would keep it busy, if "
            "sampling becomes faster in proportion.",
        ),
        (
            waiting(trainer=0.2, engines=0.15),
            1,
            4,
            "The trainer waited for groups 20 % of the time, and engines for work 15 %: rewards or tools "
            "take that time, or async.maxStaleness lets too few prompts begin.",
        ),
        (waiting(trainer=0.1, engines=0.1), 1, 4, ""),
    ],
)
def test_who_waits_for_more_than_a_tenth_of_the_time_and_how_many_would_be_enough(
    found: Overlap, num_ranks: int, num_engines: int, sentence: str
) -> None:
    assert describe_waits(found, num_ranks=num_ranks, num_engines=num_engines) == sentence


@pytest.mark.parametrize(
    ("found", "num_ranks", "num_engines", "gpus_per_engine", "expected"),
    [
        # engines have 4 x .5 of work, the trainer 4 x 1: 5 ranks take .8, 3 engines .67
        (waiting(engines=0.5), 4, 4, 1, Split(5, 3, 8.0)),
        # engines of two GPUs: 6 ranks take .67, one engine 1
        (waiting(engines=0.5), 4, 2, 2, None),
        (waiting(trainer=0.6), 3, 1, 1, Split(2, 2, 6.0)),
        (waiting(trainer=0.02), 4, 4, 1, None),
        (waiting(engines=0.9), 1, 1, 1, None),
    ],
)
def test_gpus_go_to_the_slower_side(
    found: Overlap, num_ranks: int, num_engines: int, gpus_per_engine: int, expected: Split | None
) -> None:
    better = better_overlapped_split(
        found, num_ranks=num_ranks, num_engines=num_engines, gpus_per_engine=gpus_per_engine
    )
    assert better == (
        expected and Split(expected.num_ranks, expected.num_engines, pytest.approx(expected.step_seconds))
    )  # type: ignore[arg-type]


def test_a_weight_sync_takes_as_long_on_more_ranks() -> None:
    found = Overlap(10.0, {**waiting(engines=0.7).shares, "training": 0.2, "waiting for a weight sync": 0.8})
    assert better_overlapped_split(found, num_ranks=1, num_engines=2, gpus_per_engine=1) == Split(
        2,
        1,
        pytest.approx(9.0),  # type: ignore[arg-type]
    )
