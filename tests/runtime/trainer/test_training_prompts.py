"""How many steps algorithm.epochs are."""

import pytest
from pod_builder import run_config

from grpo_runtime.errors import UserError
from grpo_runtime.trainer.training_prompts import with_total_steps


@pytest.mark.parametrize(
    ("epochs", "num_prompts", "steps"),
    [(1, 16, 4), (1, 17, 5), (2, 17, 9), (0.5, 16, 2), (0.1, 3, 1), (1.1, 40, 11)],
)
def test_every_prompt_has_its_turn_so_often_and_the_last_step_may_begin_another_epoch(
    epochs: float, num_prompts: int, steps: int
) -> None:
    run = run_config(algorithm={"epochs": epochs, "promptsPerStep": 4})
    assert run.total_steps == 0
    assert with_total_steps(run, num_prompts=num_prompts).total_steps == steps


def test_a_warm_up_that_is_longer_than_the_epochs_is_refused_once_they_are_counted() -> None:
    run = run_config(
        algorithm={"epochs": 2, "promptsPerStep": 4, "optimizer": {"learningRate": 1e-3, "warmupSteps": 5}}
    )
    with pytest.raises(
        UserError, match=r"epochs \(2\) of 8 prompts are 4 steps, fewer than optimizer\.warmup"
    ):
        with_total_steps(run, num_prompts=8)
    assert with_total_steps(run, num_prompts=9).total_steps == 5
