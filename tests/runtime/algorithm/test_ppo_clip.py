"""The clipped policy ratio."""

import math

import pytest
import torch

from grpo_runtime.algorithm.losses import compute_loss
from grpo_runtime.algorithm.types import Denominators, LossInputs, LossOptions


def test_dual_clip_bounds_the_loss_of_a_bad_token_with_a_high_ratio() -> None:
    inputs = LossInputs(
        trainer_logprobs=torch.tensor(
            [[math.log(10.0)], [math.log(2.0)]], dtype=torch.float64
        ).requires_grad_(),
        old_logprobs=torch.zeros(2, 1, dtype=torch.float64),
        advantages=torch.tensor([-1.0, -1.0], dtype=torch.float64),
        loss_mask=torch.ones(2, 1, dtype=torch.bool),
    )
    output = compute_loss(
        inputs, options=LossOptions(dual_clip=3.0), denominators=Denominators.of_mask(inputs.loss_mask)
    )
    output.loss.backward()
    assert output.loss.item() == pytest.approx((3.0 + 2.0) / 2)
    assert inputs.trainer_logprobs.grad.flatten().tolist() == pytest.approx([0.0, 1.0])
