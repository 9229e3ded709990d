"""Only the most uncertain tokens carry the policy term."""

import math

import pytest
import torch

from grpo_runtime.algorithm.top_entropy import top_entropy_mask, top_entropy_threshold


def test_the_entropy_threshold_of_more_tokens_than_torch_takes_lies_between_the_two_nearest() -> None:
    num_tokens = 2**24 + 2
    # 0.7 x (num_tokens - 1) is 11744051.9: the last of so many zeros is below that place, the first one above
    entropies = torch.cat([torch.ones(num_tokens - 11744052), torch.zeros(11744052)])
    mask = torch.ones(num_tokens, dtype=torch.bool)
    assert top_entropy_threshold(entropies, mask=mask, quantile=0.3).item() == pytest.approx(0.9, abs=1e-6)


def test_the_threshold_is_the_quantile_of_the_tokens_under_the_mask_alone() -> None:
    entropies = torch.tensor([[0.0, 1.0, 2.0, 90.0], [3.0, 4.0, 80.0, 70.0]])
    mask = torch.tensor([[True, True, True, False], [True, True, False, False]])
    # the quantiles .75, .6 and 0 of 0, 1, 2, 3 and 4, with linear interpolation
    for quantile, expected in ((0.25, 3.0), (0.4, 2.4), (1.0, 0.0)):
        found = top_entropy_threshold(entropies, mask=mask, quantile=quantile)
        assert float(found) == pytest.approx(expected)
    kept = top_entropy_mask(entropies, mask=mask, threshold=torch.tensor(3.0))
    assert kept.tolist() == [[False, False, False, False], [True, True, False, False]]


def test_without_tokens_no_token_is_above_the_threshold() -> None:
    nothing = torch.zeros(1, 2, dtype=torch.bool)
    assert float(top_entropy_threshold(torch.ones(1, 2), mask=nothing, quantile=0.5)) == math.inf
