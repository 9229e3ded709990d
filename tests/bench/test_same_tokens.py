"""Two ways of sampling must draw the same tokens."""

import pytest

from grpo_bench.errors import BenchError
from grpo_bench.same_tokens import SameTokens


def test_the_same_tokens_pass_and_each_step_is_compared_for_itself() -> None:
    same = SameTokens()
    same.check(0, [(1, 2), (3,)])
    same.check(1, [(7,), (8,)])
    same.check(0, [(1, 2), (3,)])


def test_a_different_token_is_reported_with_its_place() -> None:
    same = SameTokens()
    same.check(5, [(1, 2), (3,), (4,)])
    with pytest.raises(BenchError, match=r"1 of 3 samples of step 5: sample 1 is \(3,\) in one and \(9,\)"):
        same.check(5, [(1, 2), (9,), (4,)])


def test_missing_samples_are_reported() -> None:
    same = SameTokens()
    same.check(0, [(1,), (2,)])
    with pytest.raises(BenchError, match="2 and 1 samples in step 0"):
        same.check(0, [(1,)])
