import pytest

from grpo_runtime.engines.colocated.engine_slice import slice_of


@pytest.mark.parametrize("num_slices", [1, 2, 3, 7, 9])
def test_every_thing_is_in_one_slice_and_no_slice_is_larger_than_another_by_two(num_slices: int) -> None:
    things = list(range(7))
    slices = [
        things[slice_of(len(things), index=index, num_slices=num_slices)] for index in range(num_slices)
    ]
    assert [thing for one in slices for thing in one] == things
    assert max(map(len, slices)) - min(map(len, slices)) <= 1
