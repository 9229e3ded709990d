"""Ways that draw other tokens do not do the same thing."""

import pytest

from grpo_bench.errors import BenchError
from grpo_bench.same_tokens import SameTokens


def test_the_same_tokens_pass_and_steps_have_nothing_to_do_with_each_other() -> None:
    same = SameTokens()
    same.check(0, [(1, 2), (3,)])
    same.check(1, [(7,), (8,)])
    same.check(0, [(1, 2), (3,)])


def test_another_token_is_told_with_its_place() -> None:
    same = SameTokens()
    same.check(5, [(1, 2), (3,), (4,)])
    with pytest.raises(BenchError, match=r"1 of 3 samples of step 5: sample 1 is \(3,\) in one and \(9,\)"):
        same.check(5, [(1, 2), (9,), (4,)])


def test_missing_samples_are_told() -> None:
    same = SameTokens()
    same.check(0, [(1,), (2,)])
    with pytest.raises(BenchError, match="2 and 1 samples in step 0"):
        same.check(0, [(1,)])
