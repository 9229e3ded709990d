"""A short `make bench-learning` on a real engine: a loss that is not the default learns the copy task, a
reward of the wrong sign does not teach it, every kind of environment teaches when to call a tool, and a game
is learned by a reward at its end."""

from dataclasses import replace

import pytest

from grpo_learning.cases import CASES, Case
from grpo_learning.gates import Gate
from grpo_learning.runs import train

pytestmark = pytest.mark.engine

BY_NAME = {case.name: case for case in CASES}
# these steps have most of what there is to learn; the policy begins with .156
SOON = Gate(each_at_least=0.75)
TOOLS, PROGRAM = (
    replace(BY_NAME[f"calculator: {name}"], steps=12, window=5, gate=SOON, beside=None)
    for name in ("class of tools", "a program")
)
OF_THE_MATRIX = (
    BY_NAME["copy: cispo"],
    replace(BY_NAME["control: sign flipped"], steps=60),
    *(
        # .03 below what the coroutine reaches
        replace(BY_NAME[f"calculator: {name}"], gate=Gate(each_at_least=0.87), beside=None)
        for name in ("AsyncOpenAI", "class of tools", "function as a tool", "MCP server")
    ),
    PROGRAM,
    replace(BY_NAME["guessing game"], gate=Gate(each_at_least=0.6)),
)


@pytest.mark.parametrize(
    "case",
    [TOOLS, *(pytest.param(case, marks=pytest.mark.matrix) for case in OF_THE_MATRIX)],
    ids=lambda case: f"{case.name}, {case.steps} steps",
)
def test_a_case_reaches_its_gate(case: Case) -> None:
    assert case.gate.misses([train(case, seed=0)]) == []
