"""When engines end a job, when a hung one is replaced, and how long one waits that ended."""

import pytest

from grpo_api.contract.progress import EngineCounts, Progress, TrainerState
from grpo_api.judge.engines import (
    NO_ENGINE_SECONDS,
    PAUSE_SECONDS,
    REPLACE_AFTER_SECONDS,
    EngineAbsence,
    errors_end_job,
    restart_pause,
    seconds_until_replaced,
)

LONG = EngineAbsence(since=0.0, reported_at=NO_ENGINE_SECONDS)


@pytest.mark.parametrize(
    ("num_errors", "has_others", "is_before_first_step", "absence", "ends"),
    [
        (1, True, True, EngineAbsence(), True),
        (0, False, True, LONG, False),
        (1, False, False, LONG, True),
        (1, True, False, LONG, False),
        (1, False, False, EngineAbsence(since=0.0, reported_at=NO_ENGINE_SECONDS - 1), False),
    ],
    ids=["before the first step", "no error", "all for a minute", "another may come back", "not for long"],
)
def test_errors_of_engines_end_a_job_before_its_first_step_or_when_none_is_left(
    num_errors: int, has_others: bool, is_before_first_step: bool, absence: EngineAbsence, ends: bool
):
    found = errors_end_job(
        num_errors=num_errors,
        has_others=has_others,
        is_before_first_step=is_before_first_step,
        absence=absence,
    )
    assert found is ends


def test_reports_that_are_far_apart_do_not_tell_that_no_engine_was_there_between():
    def report(heartbeat: int, current: int) -> Progress:
        engines = EngineCounts(desired=1, known=1, current=current)
        return Progress(
            job_uid="u",
            attempt=1,
            state=TrainerState.TRAINING,
            total_steps=9,
            heartbeat=heartbeat,
            engines=engines,
        )

    absence = EngineAbsence().updated(report(1, 0), now=0.0).updated(report(2, 0), now=14.0)
    assert absence.seconds == 14.0
    assert absence.updated(report(3, 0), now=30.0).seconds == 0.0
    assert absence.updated(report(3, 1), now=15.0).since is None


def test_a_hung_engine_is_replaced_after_a_while_and_not_soon_after_another():
    def left(told: float, *, quiet: float = 0.0, newest: float | None = PAUSE_SECONDS) -> float:
        return seconds_until_replaced(
            reported_seconds=told, quiet_seconds=quiet, newest_engine_seconds=newest
        )

    assert left(REPLACE_AFTER_SECONDS) == 0.0
    assert left(REPLACE_AFTER_SECONDS - 30) == 30.0
    assert left(REPLACE_AFTER_SECONDS, newest=PAUSE_SECONDS - 90) == 90.0
    assert left(REPLACE_AFTER_SECONDS, newest=None) == 0.0
    # an old report does not tell that it still hangs
    assert [left(REPLACE_AFTER_SECONDS, quiet=quiet) for quiet in (15.0, 15.1)] == [0.0, 5.0]


def test_an_engine_is_started_again_at_once_unless_it_keeps_ending_early():
    assert restart_pause(ran_seconds=3600, num_short_runs=9) == 0
    assert [restart_pause(ran_seconds=1, num_short_runs=n) for n in (0, 1, 2, 9)] == [0, 5, 10, 60]
