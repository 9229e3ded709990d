"""The rules of attempts that the operator and local mode share."""

import pytest

from grpo_api.contract.progress import Progress, TrainerState
from grpo_api.contract.retries import LONG_RUN_SECONDS, got_on, has_begun, pause_seconds


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
def test_an_attempt_at_work_has_begun(state: TrainerState):
    assert has_begun(report(state, step=4, resumed_from_step=4))


def test_the_pause_begins_after_the_second_failure_in_a_row_and_doubles_up_to_a_minute():
    pauses = [pause_seconds(failures) for failures in (0, 1, 2, 3, 4, 5, 6, 5000)]
    assert pauses == [0, 0, 5, 10, 20, 40, 60, 60]


@pytest.mark.parametrize(
    ("saved_step", "saved_before", "expected"),
    [(None, None, False), (None, 3, False), (0, None, True), (3, 3, False), (2, 3, False), (4, 3, True)],
)
def test_a_short_attempt_got_on_if_it_committed_a_newer_checkpoint(
    saved_step: int | None, saved_before: int | None, expected: bool
):
    assert got_on(ran_seconds=0, saved_step=saved_step, saved_before=saved_before) is expected


def test_a_long_attempt_got_on_without_a_checkpoint():
    assert got_on(ran_seconds=LONG_RUN_SECONDS, saved_step=None, saved_before=None)
    assert not got_on(ran_seconds=LONG_RUN_SECONDS - 1, saved_step=None, saved_before=None)
