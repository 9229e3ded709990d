"""Two ways in turn, and the ratio of what they took."""

import pytest

from grpo_bench.pairs import Amounts, Pair, Way, alternate, compare


def seconds(*pairs: tuple[float, float]) -> list[Pair]:
    return [Pair({"seconds": first}, {"seconds": second}) for first, second in pairs]


def test_the_ways_run_in_turn_and_both_get_the_number_of_their_pair() -> None:
    done: list[tuple[str, int]] = []

    def way(name: str) -> Way:
        def run(number: int) -> Amounts:
            done.append((name, number))
            return {"seconds": 1.0}

        return Way(name, run)

    assert len(list(alternate(way("A"), way("B"), num_pairs=3))) == 3
    assert done == [("A", 0), ("B", 0), ("A", 1), ("B", 1), ("A", 2), ("B", 2)]


def test_the_ratio_is_the_median_of_the_pairs_and_not_of_all_runs() -> None:
    # the machine is three times as slow in the second pair: the ratio of medians would be 6 : 2
    (found,) = compare(seconds((2, 1), (6, 3), (12, 2)))
    assert found.ratios == [2, 2, 6]
    assert found.ratio == 2
    assert (found.first, found.second) == (6, 2)


def test_a_machine_that_slows_down_does_not_change_the_ratio() -> None:
    (found,) = compare(seconds(*((1.5 * slowness, slowness) for slowness in (1, 2, 4, 8))))
    assert found.ratios == [1.5, 1.5, 1.5, 1.5]


def test_amounts_without_a_ratio_are_an_error() -> None:
    with pytest.raises(ValueError, match="without pairs"):
        compare([])
    with pytest.raises(ValueError, match="took nothing"):
        compare(seconds((1, 0)))
    with pytest.raises(ValueError, match="measured calls and another one seconds"):
        compare([Pair({"seconds": 1.0}, {"calls": 1.0})])
