"""The micro-batches of a step, from lengths alone, and which groups are trained on together."""

import itertools
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grpo_runtime.trainer.batch import NUM_EMPTY_TOKENS
from grpo_runtime.trainer.micro_batches import Rows, divide_groups, padding_share, partition

SEQUENCES = st.lists(st.tuples(st.integers(2, 60), st.booleans()), min_size=1, max_size=40)
NUM_RANKS = st.integers(1, 6)
BUDGET = st.integers(1, 200)


@given(SEQUENCES, NUM_RANKS, BUDGET)
@example([(5, False), (7, False)], 3, 10)
@example([(50, True)], 4, 1)
def test_a_step_is_divided_whole_within_the_budget_and_evenly(
    sequences: list[tuple[int, bool]], num_ranks: int, budget: int
) -> None:
    lengths, is_counted = zip(*sequences, strict=True)
    found = partition(lengths, is_counted=is_counted, num_ranks=num_ranks, budget=budget)

    assert len(found.by_rank) == num_ranks
    assert {len(micro_batches) for micro_batches in found.by_rank} == {found.num_micro_batches}
    assert found.num_micro_batches >= 1

    rows = [row for micro_batches in found.by_rank for part in micro_batches for row in part]
    assert sorted(rows) == [row for row, counts in enumerate(is_counted) if counts]

    parts = [part for micro_batches in found.by_rank for part in micro_batches]
    rectangles = [len(part) * max((lengths[row] for row in part), default=0) for part in parts]
    assert all(
        tokens <= budget or len(part) == 1 for part, tokens in zip(parts, rectangles, strict=True) if part
    )
    assert found.num_with_sequences == sum(map(bool, parts))

    tokens = [sum(lengths[row] for part in micro_batches for row in part) for micro_batches in found.by_rank]
    assert max(tokens) - min(tokens) <= max((lengths[row] for row in rows), default=0)

    num_empty = len(parts) - found.num_with_sequences
    assert found.padded_tokens == sum(rectangles) + num_empty * NUM_EMPTY_TOKENS
    assert padding_share([found]) == pytest.approx(1 - sum(tokens) / found.padded_tokens)
    assert 0 <= padding_share([found]) <= 1


@given(SEQUENCES, NUM_RANKS, BUDGET)
@example([(50, True)], 4, 1)
def test_sequences_that_share_a_row_have_no_padding_and_fill_the_budget(
    sequences: list[tuple[int, bool]], num_ranks: int, budget: int
) -> None:
    lengths, is_counted = zip(*sequences, strict=True)
    padded = partition(lengths, is_counted=is_counted, num_ranks=num_ranks, budget=budget)
    found = partition(lengths, is_counted=is_counted, num_ranks=num_ranks, budget=budget, is_packed=True)
    for cut, others in zip(found.by_rank, padded.by_rank, strict=True):
        assert [row for part in cut for row in part] == [row for part in others for row in part]
        tokens = [sum(lengths[row] for row in part) for part in cut]
        assert all(part <= budget or len(rows) == 1 for rows, part in zip(cut, tokens, strict=True))
        for part, following in itertools.pairwise([rows for rows in cut if rows]):
            assert sum(lengths[row] for row in (*part, following[0])) > budget
    assert found.num_micro_batches <= padded.num_micro_batches
    num_empty = sum(not rows for cut in found.by_rank for rows in cut)
    assert found.padded_tokens == found.counted_tokens + num_empty * NUM_EMPTY_TOKENS
    assert found.counted_tokens == padded.counted_tokens


@given(SEQUENCES, NUM_RANKS, BUDGET)
def test_only_the_number_that_the_fullest_rank_needs_is_made(
    sequences: list[tuple[int, bool]], num_ranks: int, budget: int
) -> None:
    lengths, is_counted = zip(*sequences, strict=True)
    found = partition(lengths, is_counted=is_counted, num_ranks=num_ranks, budget=budget)
    if any(is_counted):
        assert any(all(micro_batches) for micro_batches in found.by_rank)
    for micro_batches in found.by_rank:
        for part, following in itertools.pairwise(micro_batches):
            assert part or not following
            # one more sequence would have broken the budget
            assert not following or (len(part) + 1) * lengths[part[0]] > budget


@given(SEQUENCES, NUM_RANKS, BUDGET, st.data())
def test_only_lengths_and_what_counts_decide(
    sequences: list[tuple[int, bool]], num_ranks: int, budget: int, data: Any
) -> None:
    def shapes(sequences: list[tuple[int, bool]]) -> list[list[list[int]]]:
        lengths, is_counted = zip(*sequences, strict=True)
        found = partition(lengths, is_counted=is_counted, num_ranks=num_ranks, budget=budget)
        again = partition(list(lengths), is_counted=list(is_counted), num_ranks=num_ranks, budget=budget)
        assert found == again
        return [[[lengths[row] for row in part] for part in parts] for parts in found.by_rank]

    # which sequences stand where in the batch changes nothing but their indices
    assert shapes(data.draw(st.permutations(sequences))) == shapes(sequences)
    # and what does not count might as well not be there
    assert shapes([*sequences, (60, False)]) == shapes(sequences)


def test_sequences_of_equal_length_go_by_their_place() -> None:
    found = partition([4, 4, 4, 4, 4], is_counted=[True] * 5, num_ranks=2, budget=8)
    assert found.by_rank == (((0, 2), (4,)), ((1, 3), ()))


def test_short_sequences_are_not_padded_to_the_longest_of_the_step() -> None:
    lengths = [100, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10]
    found = partition(lengths, is_counted=[True] * 11, num_ranks=1, budget=100)
    assert found.by_rank == (((0,), tuple(range(1, 11))),)
    assert (found.padded_tokens, padding_share([found])) == (200, 0)


def test_a_step_in_which_nothing_counts_has_one_empty_micro_batch_on_every_rank() -> None:
    found = partition([9, 9, 9], is_counted=[False] * 3, num_ranks=2, budget=50)
    assert found.by_rank == (((),), ((),))
    assert (found.num_micro_batches, found.num_with_sequences, padding_share([found])) == (1, 0, 1)


def divided(*, num_minibatches: int = 3, run_seed: int = 7, step: int = 0) -> tuple[Rows, ...]:
    """Six groups of two."""
    return divide_groups([2] * 6, num_minibatches=num_minibatches, run_seed=run_seed, step=step)


def test_every_group_is_whole_in_one_minibatch_and_all_have_as_many() -> None:
    found = divided()
    assert sorted(row for rows in found for row in rows) == list(range(12))
    for rows in found:
        assert len(rows) == 4
        assert all(
            first % 2 == 0 and second == first + 1
            for first, second in zip(rows[::2], rows[1::2], strict=True)
        )


def test_the_order_follows_from_seed_and_step() -> None:
    # the same on every machine and in every release: a resumed run depends on it
    assert divided() == divided() == ((4, 5, 0, 1), (2, 3, 10, 11), (8, 9, 6, 7))
    assert divided(step=1) != divided() != divided(run_seed=8)


def test_one_minibatch_has_the_step_as_it_is() -> None:
    assert divided(num_minibatches=1) == (tuple(range(12)),)


def test_groups_of_which_completions_are_missing_are_dealt_whole_in_the_same_order() -> None:
    found = divide_groups([2, 1, 3, 2], num_minibatches=2, run_seed=7, step=0)
    rows = [(0, 1), (2,), (3, 4, 5), (6, 7)]
    whole = divide_groups([2] * 4, num_minibatches=2, run_seed=7, step=0)
    order = [[each // 2 for each in part[::2]] for part in whole]
    assert found == tuple(tuple(row for group in part for row in rows[group]) for part in order)


def test_no_minibatch_is_empty_where_a_step_has_fewer_groups() -> None:
    found = divide_groups([2] * 2, num_minibatches=3, run_seed=7, step=0)
    assert sorted(found) == [(0, 1), (2, 3)]
