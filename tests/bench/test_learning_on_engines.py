"""A short `make bench-learning` on a real engine: a loss that is not the default learns the copy task, a
reward of the wrong sign does not teach it, and a client of OpenAI's API teaches when to call a tool."""

from dataclasses import replace

import pytest

from grpo_learning.cases import CASES, Case
from grpo_learning.gates import Gate
from grpo_learning.runs import train

pytestmark = [pytest.mark.engine, pytest.mark.matrix]

BY_NAME = {case.name: case for case in CASES}
SHORT = (
    BY_NAME["copy: cispo"],
    replace(BY_NAME["control: sign flipped"], steps=60),
    replace(BY_NAME["calculator: AsyncOpenAI"], steps=40, gate=Gate(each_at_least=0.75), beside=None),
)


@pytest.mark.parametrize("case", SHORT, ids=lambda case: case.name)
def test_a_case_reaches_its_gate(case: Case) -> None:
    assert case.gate.misses([train(case, seed=0)]) == []
