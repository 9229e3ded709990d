"""The rules of attempts that the operator and local mode share."""

import pytest

from grpo_api.contract.progress import Progress, TrainerState
from grpo_api.contract.retries import LONG_RUN_SECONDS, ConsecutiveFailures, has_begun, pause_seconds


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


@pytest.mark.parametrize("state", [TrainerState.TRAINING, TrainerState.STOPPING, TrainerState.DONE])
def test_an_attempt_that_trains_has_begun(state: TrainerState):
    assert has_begun(report(state, step=4, resumed_from_step=4))


def test_the_pause_begins_after_the_second_failure_in_a_row_and_doubles_up_to_a_minute():
    pauses = [pause_seconds(failures) for failures in (0, 1, 2, 3, 4, 5, 6, 5000)]
    assert pauses == [0, 0, 5, 10, 20, 40, 60, 60]


@pytest.mark.parametrize(
    ("saved_step", "saved_before", "is_progress"),
    [(None, None, False), (None, 3, False), (0, None, True), (3, 3, False), (2, 3, False), (4, 3, True)],
)
def test_a_short_attempt_makes_progress_by_committing_a_newer_checkpoint(
    saved_step: int | None, saved_before: int | None, is_progress: bool
):
    failures = ConsecutiveFailures(num_failures=2, checkpoint_step=saved_before)
    after = failures.with_attempt(ran_seconds=0, checkpoint_step=saved_step)
    assert after.num_failures == (0 if is_progress else 2)


def test_a_long_attempt_makes_progress_without_a_checkpoint():
    failures = ConsecutiveFailures(num_failures=2)
    assert failures.with_attempt(ran_seconds=LONG_RUN_SECONDS, checkpoint_step=None).num_failures == 0
    assert failures.with_attempt(ran_seconds=LONG_RUN_SECONDS - 1, checkpoint_step=None) == failures


def test_a_failure_is_one_more_and_keeps_the_newest_checkpoint():
    failures = ConsecutiveFailures(num_failures=2, checkpoint_step=5)
    assert failures.with_failure(checkpoint_step=4) == ConsecutiveFailures(3, 5)
    assert failures.with_failure(checkpoint_step=6, num_attempts=2) == ConsecutiveFailures(4, 6)
