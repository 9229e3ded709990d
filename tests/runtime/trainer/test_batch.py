import torch

from grpo_runtime.rollout.interface import Rollout
from grpo_runtime.trainer.batch import make_batch, micro_batches


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


def test_micro_batches_bound_the_logits_and_lose_no_sequence() -> None:
    rollouts = [rollout((5,), (index, 3), (-1.0, -2.0)) for index in range(7)]
    batch = make_batch(rollouts, advantages=torch.arange(7.0), pad_id=0)
    pieces = micro_batches(batch, max_logits=2 * 3 * 10, vocab_size=10)
    assert [len(piece.advantages) for piece in pieces] == [2, 2, 2, 1]
    assert torch.cat([piece.token_ids for piece in pieces]).equal(batch.token_ids)
    assert len(micro_batches(batch, max_logits=1, vocab_size=10)) == 7
