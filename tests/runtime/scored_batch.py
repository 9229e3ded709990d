"""A batch that a policy has scored itself, for tests of its learner."""

from dataclasses import replace

import torch

from grpo_runtime.rollouts.interface import Rollout
from grpo_runtime.trainer.batch import Batch, make_batch
from grpo_runtime.trainer.strategy.interface import Strategy


def a_batch(strategy: Strategy) -> Batch:
    """Eight completions of different lengths, scored by the policy itself."""
    completions = [tuple(range(10 + index, 15 + index + index % 3)) for index in range(8)]
    rollouts = [Rollout((1, 8), ids, (0.0,) * len(ids), (), True, "fake") for ids in completions]
    batch = make_batch(rollouts, group_sizes=[2] * 4, advantages=torch.tensor([1.0, -1.0] * 4), pad_id=0)
    with torch.no_grad():
        logprobs, _ = strategy.score(batch.token_ids, batch.loss_mask)
    return replace(batch, rollout_logprobs=logprobs)
