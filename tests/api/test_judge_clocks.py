"""What reports show of an attempt, and from when its clocks run."""

from datetime import UTC, datetime

import pytest

from grpo_api.contract.progress import Progress, TrainerState
from grpo_api.judge.clocks import Clocks, has_begun, has_made_a_step, stalled


def report(state: TrainerState, *, step: int = 0, resumed_from_step: int | None = None) -> Progress:
    return Progress(
        job_uid="u", attempt=2, state=state, step=step, total_steps=9, resumed_from_step=resumed_from_step
    )


@pytest.mark.parametrize("state", [TrainerState.STARTING, TrainerState.WAITING_FOR_ROLLOUT])
def test_an_attempt_that_starts_or_waits_has_begun_only_after_a_step_of_its_own(state: TrainerState):
    assert not has_begun(report(state))
    assert not has_begun(report(state, step=4, resumed_from_step=4))
    assert has_begun(report(state, step=1))
    assert has_begun(report(state, step=5, resumed_from_step=4))


def test_the_steps_of_the_checkpoint_that_an_attempt_began_with_are_none_of_its_own():
    assert has_made_a_step(report(TrainerState.TRAINING, step=4))
    assert not has_made_a_step(report(TrainerState.TRAINING, step=4, resumed_from_step=4))


@pytest.mark.parametrize("state", [TrainerState.TRAINING, TrainerState.STOPPING, TrainerState.DONE])
def test_an_attempt_that_trains_has_begun(state: TrainerState):
    assert has_begun(report(state, step=4, resumed_from_step=4))


def beat(state: TrainerState, heartbeat: int) -> Progress:
    return report(state).model_copy(update={"heartbeat": heartbeat})


def test_the_startup_clock_runs_from_the_beginning_and_begins_anew_while_a_checkpoint_is_read():
    clocks = Clocks.begin(10.0)
    clocks = clocks.updated(None, now=20.0)
    assert clocks.starting_since == 10.0
    clocks = clocks.updated(beat(TrainerState.STARTING, 1), now=30.0)
    assert clocks.starting_since == 10.0  # the first report shows no progress
    clocks = clocks.updated(beat(TrainerState.STARTING, 2), now=40.0)
    assert clocks.starting_since == 40.0
    clocks = clocks.updated(beat(TrainerState.WAITING_FOR_ROLLOUT, 3), now=50.0)
    assert (clocks.starting_since, clocks.has_begun) == (40.0, False)


def test_any_sign_of_life_begins_the_quiet_time_anew_and_a_new_message_is_none():
    clocks = Clocks.begin(0.0).updated(beat(TrainerState.TRAINING, 1), now=1.0)
    assert (clocks.alive_at, clocks.has_begun) == (1.0, True)
    waits = beat(TrainerState.TRAINING, 1).model_copy(update={"message": "waits"})
    assert clocks.updated(waits, now=9.0).alive_at == 1.0
    assert clocks.updated(waits, now=9.0).progress == waits
    assert clocks.updated(beat(TrainerState.TRAINING, 2), now=9.0).alive_at == 9.0
    assert clocks.updated(beat(TrainerState.STOPPING, 1), now=9.0).alive_at == 9.0


def test_a_stall_says_how_long_the_limit_and_what_the_trainer_did():
    waits = report(TrainerState.TRAINING, step=3).model_copy(update={"message": "no engine answers"})
    at = datetime(2026, 1, 1, tzinfo=UTC)
    why = stalled(waits, seconds=61.4, limit_seconds=60, last_sign_at=at)
    assert why.reason == "TrainerStalled"
    assert why.message == (
        "the trainer has made no progress for 61 s (stallTimeoutSeconds is 60) after step 3 of 9; it reports "
        "since 2026-01-01T00:00:00Z: Training: no engine answers"
    )
