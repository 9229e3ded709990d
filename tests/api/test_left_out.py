"""When environments of which nothing can be trained are reported, and with which sentence."""

import pytest

from grpo_api.contract.left_out import (
    LEFT_OUT_IN_A_ROW,
    MOST_FAILED_IN_A_ROW,
    LeftOutEnvironment,
    count_groups,
    left_out_message,
)


def test_groups_are_counted_in_a_row_for_each_environment_until_one_is_there() -> None:
    counts: dict[str, int] = {}
    for left_out, sampled, expected in (
        (["go", "go"], {"chess"}, {"go": 2}),
        ([], {"chess"}, {"go": 2}),
        (["go", "poker"], {"chess"}, {"go": 3, "poker": 1}),
        (["go"], {"go", "poker"}, {}),
    ):
        counts = count_groups(counts, left_out=left_out, sampled=sampled)
        assert counts == expected


@pytest.mark.parametrize("num_groups", [MOST_FAILED_IN_A_ROW - 1, MOST_FAILED_IN_A_ROW])
def test_so_many_in_a_row_are_reported(num_groups: int) -> None:
    values = {LEFT_OUT_IN_A_ROW.format("go"): float(num_groups), "env/chess/reward": 99.0, "reward": 99.0}
    found = LeftOutEnvironment.of_metrics(values)
    expected = (
        [] if num_groups < MOST_FAILED_IN_A_ROW else [LeftOutEnvironment(name="go", num_groups=num_groups)]
    )
    assert list(found) == expected


def test_the_sentence_names_each_and_says_where_to_look() -> None:
    found = [LeftOutEnvironment(name="go", num_groups=16), LeftOutEnvironment(name="poker", num_groups=20)]
    assert left_out_message(found) == (
        "of environment go the last 16 groups were left out and of environment poker the last 20 groups were "
        "left out, because too many of their episodes failed three times, and nothing is learned there: the "
        "log of the first trainer pod has each failure of its agent"
    )
