"""What follows the end of an attempt: pauses, what is progress, and when no other one helps."""

import pytest

from grpo_api.contract.progress import Progress, TerminationMessage
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.judge.attempts import WithoutProgress, pause_seconds, repeated_error, why_final
from grpo_api.judge.causes import Cause, cause_of
from grpo_api.v1alpha1.status import ErrorSignature


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


def saved(step: int | None, *, resumed_from_step: int | None = None) -> Progress:
    return Progress(
        job_uid="u",
        attempt=1,
        step=9,
        total_steps=9,
        checkpoint_step=step,
        resumed_from_step=resumed_from_step,
    )


def test_steps_that_were_not_saved_are_no_progress():
    past = WithoutProgress(num_failures=3)
    assert past.with_progress(saved(None)) == past
    assert past.with_progress(None) == past


def test_a_newer_checkpoint_is_progress_and_one_that_was_there_before_is_not():
    past = WithoutProgress(3, checkpoint_step=4).with_progress(saved(6, resumed_from_step=4))
    assert past == WithoutProgress(checkpoint_step=6)
    failed = past.with_end(is_counted=True)
    assert failed.with_progress(saved(6, resumed_from_step=6)) == failed


def test_the_checkpoint_of_a_run_before_this_one_is_no_progress():
    past = WithoutProgress(1).with_progress(saved(6, resumed_from_step=6))
    assert past == WithoutProgress(1, checkpoint_step=6)


BUG = ErrorSignature(type="TypeError", where="mine.reward:3", step=7)


def final(
    exit_code: int = 1,
    reason: str = Reason.UNEXPECTED_ERROR,
    *,
    num_failures: int = 0,
    error: ErrorSignature | None = None,
    error_before: ErrorSignature | None = None,
) -> ReasonMessage | None:
    end = TerminationMessage(exit_code=exit_code, reason=reason, message="because", error=error)
    cause: Cause[str] = cause_of(end, "trainer-0", has_worked=False)
    past = WithoutProgress(num_failures, checkpoint_step=5 if num_failures else None)
    return why_final(cause, attempt=4, past=past, max_restarts=2, error_before=error_before)


def test_what_no_retry_can_help_ends_the_job_with_its_own_words():
    assert final(40, Reason.USER_ERROR) == ReasonMessage(Reason.USER_ERROR, "because")


def test_counted_failures_end_the_job_at_the_limit_and_the_sentence_says_since_when():
    assert final(num_failures=1) is None
    used_up = "attempt 4 failed and failurePolicy.maxRestarts (2) is used up since the checkpoint of step 5"
    assert final(num_failures=2) == ReasonMessage(Reason.UNEXPECTED_ERROR, f"{used_up}: because")


def test_a_failure_that_does_not_count_never_ends_the_job():
    assert final(75, Reason.HUB_UNREACHABLE, num_failures=2) is None


def test_the_same_error_twice_at_the_same_step_ends_the_job():
    assert final(error=BUG) is None
    assert final(error=BUG, error_before=BUG.model_copy(update={"step": 6})) is None
    assert final(error_before=BUG) is None
    again = final(error=BUG, error_before=BUG)
    assert again is not None and again.reason == Reason.REPEATED_ERROR
    assert again.message.startswith("the same error twice at step 7: because;")
