"""When steps teach nothing for so long that people are told, and what they are told."""

import pytest

from grpo_api.contract.learning_signal import STEPS_REPORTED, Lack, StepsWithoutSignal, count_step
from grpo_api.contract.progress import Progress

NAMES = ("accuracy", "format")


def after(*lacks: Lack | None) -> StepsWithoutSignal | None:
    """What is known after steps that lacked this."""
    counts: dict[str, int] = {}
    for lack in lacks:
        counts = count_step(counts, lack)
    return StepsWithoutSignal.of(counts, step=len(lacks), rewards=NAMES)


def is_reported(*lacks: Lack | None, total_steps: int = 1000) -> bool:
    found = after(*lacks)
    progress = Progress(
        job_uid="uid", attempt=1, step=len(lacks), total_steps=total_steps, steps_without_signal=found
    )
    return progress.no_learning_signal is not None


@pytest.mark.parametrize("lack", Lack)
def test_people_are_told_after_ten_steps_in_a_row_that_taught_nothing(lack: Lack):
    assert not is_reported(*[lack] * 9)
    assert is_reported(*[lack] * 10) and is_reported(*[lack] * 11)
    assert not is_reported(*[lack] * 9, None, lack)
    assert is_reported(None, *[lack] * 10)


def test_steps_that_lacked_different_things_count_together():
    mixed = [Lack.REWARD, Lack.DIFFERENCE, Lack.GRADIENT, *[Lack.DIFFERENCE] * (STEPS_REPORTED - 3)]
    assert is_reported(*mixed)
    found = after(*mixed)
    assert found is not None and (found.num_steps, found.reason) == (10, "EqualRewards")
    assert "in 8 of them no two completions" in found.message
    assert "in 1 of them no completion had a reward" in found.message


def test_a_short_run_is_told_at_its_end_where_no_step_had_anything_to_learn():
    assert not is_reported(Lack.REWARD, Lack.REWARD, total_steps=3)
    assert is_reported(Lack.REWARD, Lack.REWARD, Lack.REWARD, total_steps=3)
    assert not is_reported(None, Lack.REWARD, Lack.REWARD, total_steps=3)
    # while the prompts of algorithm.epochs are not counted
    assert not is_reported(Lack.REWARD, Lack.REWARD, total_steps=0)


@pytest.mark.parametrize(
    ("lack", "reason", "says"),
    [
        (Lack.REWARD, "NoReward", ["every function returned None", "return a number"]),
        (Lack.DIFFERENCE, "EqualRewards", ["no two completions of a prompt", "algorithm.groupSize"]),
        (Lack.GRADIENT, "ZeroGradient", ["the gradient was 0", "algorithm.maskTruncated"]),
    ],
)
def test_the_message_says_which_steps_what_they_lacked_and_what_to_do(
    lack: Lack, reason: str, says: list[str]
):
    found = after(None, *[lack] * 10)
    assert found is not None and found.reason == reason
    assert [
        part for part in ["from accuracy, format in steps 2 to 11: ", *says] if part not in found.message
    ] == []


def test_the_longest_message_fits_into_a_condition():
    names = [chr(97 + index) * 63 for index in range(16)]
    counts = {lack.value: 10**6 for lack in Lack}
    found = StepsWithoutSignal.of(counts, step=10**7, rewards=names)
    assert found is not None and found.rewards.endswith("and 13 more")
    assert len(found.message) <= 1024
