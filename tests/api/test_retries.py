"""The rules of attempts that the operator and local mode share."""

import pytest

from grpo_api.contract.progress import Progress, TrainerState
from grpo_api.contract.retries import has_begun


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
