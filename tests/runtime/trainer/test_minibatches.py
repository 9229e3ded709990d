"""Which groups are trained on together."""

from grpo_runtime.trainer.minibatches import Rows, divide_groups


def divided(*, num_minibatches: int = 3, run_seed: int = 7, step: int = 0) -> tuple[Rows, ...]:
    """Six groups of two."""
    return divide_groups(12, group_size=2, num_minibatches=num_minibatches, run_seed=run_seed, step=step)


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
    assert divided() == divided() == EXPECTED
    assert divided(step=1) != divided() != divided(run_seed=8)


def test_one_minibatch_has_the_step_as_it_is() -> None:
    assert divided(num_minibatches=1) == (tuple(range(12)),)


def test_no_minibatch_is_empty_where_a_step_has_fewer_groups() -> None:
    found = divide_groups(4, group_size=2, num_minibatches=3, run_seed=7, step=0)
    assert sorted(found) == [(0, 1), (2, 3)]


EXPECTED = ((4, 5, 0, 1), (2, 3, 10, 11), (8, 9, 6, 7))
