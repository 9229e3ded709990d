"""The rules of attempts that the operator and local mode share."""

import pytest

from grpo_api.contract.progress import Progress, TrainerState
from grpo_api.contract.retries import (
    WithoutProgress,
    has_begun,
    has_made_a_step,
    pause_seconds,
    repeated_error,
)
from grpo_api.v1alpha1.status import ErrorSignature


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


def test_the_pause_begins_after_the_second_failure_in_a_row_and_doubles_up_to_a_minute():
    pauses = [pause_seconds(failures) for failures in (0, 1, 2, 3, 4, 5, 6, 5000)]
    assert pauses == [0, 0, 5, 10, 20, 40, 60, 60]


def test_the_pause_after_disruptions_grows_to_ten_minutes_and_the_longer_pause_counts():
    pauses = [pause_seconds(0, num_disruptions=times) for times in (0, 1, 2, 3, 8, 9, 5000)]
    assert pauses == [0, 0, 5, 10, 320, 600, 600]
    assert pause_seconds(3, num_disruptions=1) == 10
    assert pause_seconds(1, num_disruptions=4) == 20


@pytest.mark.parametrize(
    ("saved_step", "saved_before", "is_progress"),
    [(None, None, False), (None, 3, False), (0, None, True), (3, 3, False), (2, 3, False), (4, 3, True)],
)
def test_progress_is_a_checkpoint_beyond_any_before(
    saved_step: int | None, saved_before: int | None, is_progress: bool
):
    past = WithoutProgress(num_failures=2, num_disruptions=5, checkpoint_step=saved_before)
    expected = WithoutProgress(checkpoint_step=saved_step) if is_progress else past
    assert past.with_checkpoint(saved_step) == expected


def test_an_attempt_that_ended_is_one_more_of_its_kind():
    past = WithoutProgress(num_failures=2, num_disruptions=5, checkpoint_step=3)
    assert past.with_end(is_counted=True) == WithoutProgress(3, 5, 3)
    assert past.with_end(is_counted=False) == WithoutProgress(2, 6, 3)


def test_an_error_is_repeated_where_everything_about_it_is_the_same():
    error = ErrorSignature(type="TypeError", where="mine.reward:3")
    assert repeated_error(error, before=None, message="m") is None
    assert repeated_error(None, before=None, message="m") is None
    assert repeated_error(error, before=error.model_copy(update={"step": 1}), message="m") is None
    again = repeated_error(error, before=error.model_copy(), message="m")
    assert again is not None and again.reason == "RepeatedError"
    assert again.message.startswith("the same error twice before the first step: m; another attempt")
