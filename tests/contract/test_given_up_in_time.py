"""An episode that is given up is given up before its job counts as stalled."""

import pytest

from grpo_api.v1alpha1.spec.environments import BESIDE_TRIES_SECONDS
from grpo_runtime.rollouts.function.shared_process import HANG_SECONDS
from grpo_runtime.rollouts.function.tries import PAUSES_SECONDS

A_START_SECONDS = 15
"""Of a process of the user's code, with its imports."""


@pytest.mark.parametrize(
    ("of_each_try", "of_those_in_a_shared_process", "num_starts"),
    [
        # nothing answers when it is asked whether it hangs: neither the episode nor the next who asks
        (HANG_SECONDS, HANG_SECONDS, 2),
        # it answers at the last moment, each time, and then takes as long as it may to end the episode
        (2 * HANG_SECONDS, HANG_SECONDS, 0),
    ],
    ids=["a process that hangs", "one that nearly hangs"],
)
def test_three_late_tries_take_no_longer_than_the_spec_leaves_for_them(
    of_each_try: float, of_those_in_a_shared_process: float, num_starts: int
) -> None:
    num_shared = len(PAUSES_SECONDS)
    assert num_shared + 1 == 3, "the rule has three tries"
    beside = (num_shared + 1) * of_each_try + num_shared * of_those_in_a_shared_process
    assert sum(PAUSES_SECONDS) + beside + num_starts * A_START_SECONDS < BESIDE_TRIES_SECONDS
