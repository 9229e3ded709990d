import dataclasses

import torch

from grpo_runtime.rollouts.interface import Rollout
from grpo_runtime.trainer.batch import make_batch


def rollout(prompt: tuple[int, ...], completion: tuple[int, ...], logprobs: tuple[float, ...]) -> Rollout:
    return Rollout(prompt, completion, logprobs, (), True, "fake")


def test_the_mask_covers_the_positions_that_predict_a_completion_token() -> None:
    batch = make_batch(
        [rollout((5, 6), (7,), (-0.5,)), rollout((5,), (8, 9, 3), (-1.0, -2.0, -3.0))],
        advantages=torch.tensor([1.0, -1.0]),
        pad_id=0,
    )
    assert batch.token_ids.tolist() == [[5, 6, 7, 0], [5, 8, 9, 3]]
    # column t is about token t + 1
    assert batch.loss_mask.tolist() == [[False, True, False], [True, True, True]]
    assert batch.rollout_logprobs.tolist() == [[0.0, -0.5, 0.0], [-1.0, -2.0, -3.0]]
    assert batch.token_ids[:, 1:][batch.loss_mask].tolist() == [7, 8, 9, 3]


def test_no_token_of_a_completion_that_was_cut_counts_where_the_job_says_so() -> None:
    cut = dataclasses.replace(rollout((5,), (8, 9), (-1.0, -2.0)), is_terminated=False)
    whole = rollout((5,), (7, 3), (-0.5, -0.5))
    for masks_truncated, expected in (
        (False, [[True, True], [True, True]]),
        (True, [[False, False], [True, True]]),
    ):
        batch = make_batch(
            [cut, whole], advantages=torch.tensor([1.0, -1.0]), pad_id=0, masks_truncated=masks_truncated
        )
        assert batch.loss_mask.tolist() == expected
        assert batch.advantages.tolist() == [1.0, -1.0]


def test_tokens_that_no_policy_sampled_do_not_count() -> None:
    of_turns = dataclasses.replace(rollout((5,), (8, 9, 3), (-1.0, 0.0, -3.0)), loss_mask=(True, False, True))
    batch = make_batch([of_turns], advantages=torch.tensor([1.0]), pad_id=0)
    assert batch.token_ids.tolist() == [[5, 8, 9, 3]]
    assert batch.loss_mask.tolist() == [[True, False, True]]
    cut = dataclasses.replace(of_turns, is_terminated=False)
    masked = make_batch([cut], advantages=torch.tensor([1.0]), pad_id=0, masks_truncated=True)
    assert not masked.loss_mask.any()


def test_a_part_is_as_wide_as_its_own_longest_sequence() -> None:
    rollouts = [
        rollout((5, 6), (7,), (-0.5,)),
        rollout((5,), (8, 9, 3, 4), (-1.0, -2.0, -3.0, -4.0)),
        rollout((5,), (2,), (-6.0,)),
    ]
    batch = make_batch(rollouts, advantages=torch.tensor([1.0, -1.0, 2.0]), pad_id=0)
    assert batch.lengths == [3, 5, 2]
    part = batch.part((0, 2))
    assert part.token_ids.tolist() == [[5, 6, 7], [5, 2, 0]]
    assert part.loss_mask.tolist() == [[False, True], [True, False]]
    assert part.rollout_logprobs.tolist() == [[0.0, -0.5], [-6.0, 0.0]]
    assert part.advantages.tolist() == [1.0, 2.0]


def test_a_part_without_sequences_is_a_row_in_which_nothing_counts() -> None:
    batch = make_batch([rollout((5,), (8, 9), (-1.0, -2.0))], advantages=torch.tensor([1.0]), pad_id=0)
    part = batch.part(())
    assert part.token_ids.shape == (1, 2)
    assert part.loss_mask.tolist() == [[False]]
    assert part.rollout_logprobs.shape == (1, 1)
    assert part.advantages.tolist() == [0.0]


def test_a_completion_without_tokens_takes_the_least_room() -> None:
    rollouts = [rollout((5, 6, 7), (), ()), rollout((5,), (8,), (-1.0,))]
    batch = make_batch(rollouts, advantages=torch.tensor([1.0, -1.0]), pad_id=0)
    assert batch.lengths == [2, 2]
    assert batch.part((0,)).loss_mask.tolist() == [[False]]
