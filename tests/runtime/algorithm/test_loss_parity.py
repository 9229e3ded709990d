"""Losses against TRL 1.16.0: the loss, every element of its gradient, and the metrics it logged.

fixtures/losses.json are published numbers; fixtures/losses_more.json were made with TRL's own code on the
same inputs for the options that the first file does not cover.
"""

import json
from pathlib import Path

import pytest
import torch
from trl_case import BARS, loss_misses

FIXTURES = Path(__file__).parent / "fixtures"
PUBLISHED = json.loads((FIXTURES / "losses.json").read_text())
CASES = PUBLISHED["cases"] | json.loads((FIXTURES / "losses_more.json").read_text())["cases"]


@pytest.mark.parametrize("dtype", BARS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_loss_gradient_and_metrics_are_those_of_trl(case: str, dtype: torch.dtype) -> None:
    assert loss_misses(PUBLISHED["inputs"], CASES[case], dtype=dtype) == []


def test_the_published_cases_are_all_here() -> None:
    assert len(PUBLISHED["cases"]) == 16
    assert len(CASES) == 42
