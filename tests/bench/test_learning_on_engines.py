"""A short `make bench-learning`: a loss that is not the default learns the copy task on a real engine, and a
reward of the wrong sign does not teach it."""

from dataclasses import replace

import pytest

from grpo_learning.cases import CASES, Case
from grpo_learning.runs import train

pytestmark = [pytest.mark.engine, pytest.mark.matrix]

BY_NAME = {case.name: case for case in CASES}
SHORT = (BY_NAME["copy: cispo"], replace(BY_NAME["control: sign flipped"], steps=60))


@pytest.mark.parametrize("case", SHORT, ids=lambda case: case.name)
def test_a_case_reaches_its_gate(case: Case) -> None:
    assert case.gate.misses([train(case, seed=0)]) == []
