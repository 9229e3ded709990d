import pytest

from grpo_runtime.shares import share


@pytest.mark.parametrize("num_shares", [1, 2, 3, 7, 9])
def test_every_thing_is_in_one_share_and_no_share_is_larger_than_another_by_two(num_shares: int) -> None:
    things = list(range(7))
    shares = [things[share(len(things), index=index, num_shares=num_shares)] for index in range(num_shares)]
    assert [thing for one in shares for thing in one] == things
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
