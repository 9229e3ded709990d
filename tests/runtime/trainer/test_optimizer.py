"""The schedules against transformers', and AdamW's state against a run that was never interrupted."""

import pytest
import torch
from transformers import get_scheduler

from grpo_api.v1alpha1.spec import OptimizerSpec, Schedule
from grpo_runtime.trainer.optimizer import learning_rate

TRANSFORMERS_NAMES = {
    Schedule.CONSTANT: "constant_with_warmup",
    Schedule.LINEAR: "linear",
    Schedule.COSINE: "cosine",
}


@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize("warmup_steps", [0, 3])
def test_the_schedules_are_those_of_transformers(schedule: Schedule, warmup_steps: int) -> None:
    spec = OptimizerSpec(learning_rate=0.5, schedule=schedule, warmup_steps=warmup_steps)
    reference = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    scheduler = get_scheduler(
        TRANSFORMERS_NAMES[schedule], reference, num_warmup_steps=warmup_steps, num_training_steps=10
    )
    for step in range(10):
        assert learning_rate(spec, step=step, total_steps=10) == pytest.approx(scheduler.get_last_lr()[0])
        reference.step()
        scheduler.step()


def test_a_warm_up_longer_than_the_run_only_warms_up() -> None:
    spec = OptimizerSpec(learning_rate=1.0, schedule=Schedule.COSINE, warmup_steps=20)
    assert [learning_rate(spec, step=step, total_steps=10) for step in (0, 5, 9)] == [0.0, 0.25, 0.45]
