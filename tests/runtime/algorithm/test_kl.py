"""The penalty for leaving the reference policy."""

import math
from collections.abc import Callable

import pytest
import torch

from grpo_runtime.algorithm.kl import kl_k1, kl_k2, kl_k3, token_kl


def test_the_kl_estimators_are_the_published_formulas() -> None:
    log_difference = torch.tensor([-0.5, 0.0, 0.7], dtype=torch.float64)
    ratio = log_difference.exp()
    assert torch.allclose(kl_k1(log_difference), -ratio.log())
    assert torch.allclose(kl_k2(log_difference), ratio.log() ** 2 / 2)
    assert torch.allclose(kl_k3(log_difference), (ratio - 1) - ratio.log())


@pytest.mark.parametrize(("estimator", "slope"), [(kl_k1, 1.0), (kl_k2, -0.4), (kl_k3, 1 - math.exp(0.4))])
def test_with_bias_correction_each_estimate_counts_by_the_policy_ratio(
    estimator: Callable[[torch.Tensor], torch.Tensor], slope: float
) -> None:
    """pi -1.4, ref -1, old -1.2: the ratio is exp(-0.2), and depends on pi as the estimate does."""
    trainer = torch.tensor([[-1.4]], dtype=torch.float64, requires_grad=True)
    ratio = (trainer + 1.2).exp()
    reference = torch.tensor([[-1.0]], dtype=torch.float64)
    plain = token_kl(estimator, trainer_logprobs=trainer, ref_logprobs=reference, bias_correction=None)
    corrected = token_kl(estimator, trainer_logprobs=trainer, ref_logprobs=reference, bias_correction=ratio)
    assert corrected.item() == pytest.approx(math.exp(-0.2) * plain.item())
    (gradient,) = torch.autograd.grad(corrected.sum(), trainer)
    # the product rule: d ratio / d pi is the ratio itself
    assert gradient.item() == pytest.approx(math.exp(-0.2) * (slope + plain.item()))
