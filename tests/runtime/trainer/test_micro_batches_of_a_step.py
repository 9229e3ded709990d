"""What each rank computes of a step, and what the step is divided by."""

from collections.abc import Sequence

import pytest
import torch

from grpo_runtime.algorithm.kl import KLPenalty
from grpo_runtime.algorithm.types import LossOptions
from grpo_runtime.rollouts.interface import Rollout
from grpo_runtime.trainer.batch import Batch, make_batch
from grpo_runtime.trainer.micro_batches import StepParts, UpdateParts, divide_step

ADVANTAGES = [1.0, 0.0, -1.0, 0.0, 2.0]
LENGTHS = [3, 9, 4, 2, 6]
"""Tokens of the completions, each after a prompt of one."""


def a_batch(advantages: list[float]) -> Batch:
    rollouts = [
        Rollout((1,), (10 + index,) * length, (-1.0,) * length, (), True, "fake")
        for index, length in enumerate(LENGTHS)
    ]
    return make_batch(rollouts, group_sizes=[len(rollouts)], advantages=torch.tensor(advantages), pad_id=0)


def divided(
    advantages: list[float],
    *,
    num_ranks: int = 2,
    budget: int = 12,
    options: LossOptions | None = None,
    minibatches: Sequence[Sequence[int]] = (),
) -> list[StepParts]:
    """The parts of every rank."""
    batch, options = a_batch(advantages), options or LossOptions()
    return [
        divide_step(
            batch, options=options, rank=rank, num_ranks=num_ranks, budget=budget, minibatches=minibatches
        )
        for rank in range(num_ranks)
    ]


def the_update(parts: StepParts) -> UpdateParts:
    """Of a step that has one."""
    [update] = parts.updates
    return update


def computed(updates: Sequence[UpdateParts]) -> list[int]:
    """Indices of the sequences that any rank computes in an update."""
    rows = [row for part in updates for micro_batch in part.micro_batches for row in micro_batch.token_ids]
    return sorted(int(row[1]) - 10 for row in rows if row[1] >= 10)


def test_sequences_of_advantage_0_are_left_out_and_still_divide() -> None:
    parts = divided(ADVANTAGES)
    assert computed([the_update(part) for part in parts]) == [0, 2, 4]
    for part in parts:
        denominators = the_update(part).denominators
        assert (denominators.num_tokens, denominators.num_sequences) == (sum(LENGTHS), 5)
        assert part.metrics["batch/computed_share"] == pytest.approx((3 + 4 + 6) / sum(LENGTHS))
    assert parts[0].metrics == parts[1].metrics


def test_they_are_computed_where_an_option_needs_them() -> None:
    parts = divided(ADVANTAGES, options=LossOptions(kl=KLPenalty(beta=0.1)))
    assert computed([the_update(part) for part in parts]) == [0, 1, 2, 3, 4]
    assert parts[0].metrics["batch/computed_share"] == 1


def test_every_rank_has_as_many_micro_batches_of_which_the_empty_ones_divide_nothing() -> None:
    parts = divided(ADVANTAGES, budget=7)
    first, second = map(the_update, parts)
    # 7 tokens on one rank, 5 + 4 on the other
    assert [part.token_ids.shape for part in first.micro_batches] == [(1, 7), (1, 2)]
    assert [part.token_ids.shape for part in second.micro_batches] == [(1, 5), (1, 4)]
    assert not first.micro_batches[1].loss_mask.any()
    assert first.denominators == second.denominators
    assert first.denominators.num_micro_batches == 3
    assert parts[0].metrics["batch/micro_batches"] == 2
    assert parts[0].metrics["batch/padding_share"] == pytest.approx(2 / 18)


def test_each_minibatch_has_its_own_counts_over_all_ranks_and_micro_batches() -> None:
    parts = divided(ADVANTAGES, budget=7, minibatches=[(3, 0), (4, 1, 2)])
    first, second = zip(*(part.updates for part in parts), strict=True)
    assert (computed(first), computed(second)) == ([0], [2, 4])
    for update in first:
        assert (update.denominators.num_tokens, update.denominators.num_sequences) == (3 + 2, 2)
        # as many as on the other rank, which has nothing to compute
        assert len(update.micro_batches) == update.denominators.num_micro_batches == 1
    for update in second:
        assert (update.denominators.num_tokens, update.denominators.num_sequences) == (6 + 9 + 4, 3)
        assert update.denominators.num_micro_batches == 2
    assert parts[0].metrics == parts[1].metrics
    assert parts[0].metrics["batch/micro_batches"] == 2
    assert parts[0].metrics["batch/computed_share"] == pytest.approx((3 + 4 + 6) / sum(LENGTHS))
    # the rank without a sequence computes an empty one of two tokens
    assert parts[0].metrics["batch/padding_share"] == pytest.approx(2 / (4 + 2 + 7 + 5))


def test_the_sequences_of_an_episode_divide_as_one_on_whichever_ranks_they_are() -> None:
    def rollout(token: int, length: int, *branches: Rollout) -> Rollout:
        return Rollout((1,), (token,) * length, (-1.0,) * length, (), True, "fake", branches=branches)

    samples = [rollout(10, 3, rollout(11, 5), rollout(12, 4)), rollout(13, 2), rollout(14, 6)]
    batch = make_batch(
        samples, group_sizes=[len(samples)], advantages=torch.tensor([1.0, 0.0, -1.0]), pad_id=0
    )
    minibatches = [batch.rows_of(samples) for samples in ((2, 0), (1,))]
    parts = [
        divide_step(batch, options=LossOptions(), rank=rank, num_ranks=2, budget=7, minibatches=minibatches)
        for rank in range(2)
    ]
    for part in parts:
        first, second = (update.denominators for update in part.updates)
        assert (first.num_tokens, first.num_sequences) == (3 + 5 + 4 + 6, 2)
        assert (second.num_tokens, second.num_sequences) == (2, 1)
    by_rank = [
        [int(row) for each in part.updates[0].micro_batches for row in each.token_ids[:, 1]] for part in parts
    ]
    assert by_rank == [[14, 10], [11, 12]]
    sizes = {
        int(token): int(size)
        for part in parts
        for each in part.updates[0].micro_batches
        for token, size in zip(each.token_ids[:, 1], each.episode_sizes, strict=True)
    }
    assert sizes == {10: 3, 11: 3, 12: 3, 14: 1}


def test_a_step_of_which_nothing_is_computed_has_numbers_to_report() -> None:
    for part in divided([0.0] * 5):
        update = the_update(part)
        assert len(update.micro_batches) == 1
        assert update.denominators.num_micro_batches == 1
        assert part.metrics == {
            "batch/micro_batches": 1,
            "batch/padding_share": 1,
            "batch/computed_share": 0,
        }
