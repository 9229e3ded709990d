"""The two ranks of test_micro_batches_across_ranks: each trains on its part of every batch of NUM_SEQUENCES.

`python learner_ranks.py PORT MODEL_FOLDER RESULTS` writes the weights after each batch to
RESULTS/RANK-NUM_SEQUENCES.safetensors, with the metrics of its steps as metadata.
"""

import json
import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from grpo_api.v1alpha1.spec import AlgorithmSpec, Dtype, OptimizerSpec
from grpo_runtime.model.load import load_policy
from grpo_runtime.rollout.interface import Rollout
from grpo_runtime.trainer import learner as learner_module
from grpo_runtime.trainer.batch import Batch, make_batch
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.learner import Learner
from grpo_runtime.trainer.policy import MASTER_DTYPE, Policy
from grpo_runtime.trainer.stop import StopRequest
from grpo_runtime.trainer.strategy.ddp import DDPStrategy

WORLD_SIZE = 2
NUM_SEQUENCES = (8, 9)
"""A rank trains on two at a time: of 8 each has two micro-batches, of 9 one has two and the other three."""
NUM_STEPS = 2
SPEC = AlgorithmSpec(steps=10, num_iterations=2, optimizer=OptimizerSpec(learning_rate=1e-3))


def a_policy(model_folder: Path) -> Policy:
    """The same on every rank."""
    return Policy(load_policy(model_folder, dtype=MASTER_DTYPE), temperature=1.0, dtype=Dtype.FLOAT32)


def a_batch(num_sequences: int) -> Batch:
    """Sequences of different lengths and advantages, so that no part of the batch is like another."""
    rollouts = []
    for index in range(num_sequences):
        completion = tuple(10 + (7 * index + place) % 60 for place in range(2 + 3 * index % 7))
        rollouts.append(Rollout((7, 8), completion, (-4.6,) * len(completion), (), True, "fake"))
    advantages = torch.tensor([(-1.0) ** index * (1 + index / 4) for index in range(num_sequences)])
    return make_batch(rollouts, advantages=advantages, pad_id=0)


@torch.no_grad()
def spoil(strategy: DDPStrategy) -> None:
    """Weights and moments as no run ever has them."""
    for tensor in (*strategy.policy.parameters(), *(tensor for _, tensor in strategy.optimizer_state())):
        tensor.fill_(0.75)


def train(ranks: Ranks, *, num_sequences: int, model_folder: Path, result: Path) -> None:
    """Train on one batch a few times, two sequences at a time, and write the weights to `result`."""
    policy = a_policy(model_folder)
    strategy = DDPStrategy(policy, optimizer=SPEC.optimizer, total_steps=SPEC.steps, ranks=ranks)
    if ranks.rank != 0:
        # when a run resumes, only rank 0 has read the checkpoint
        spoil(strategy)
    strategy.load(None)
    batch = a_batch(num_sequences)
    learner_module.MAX_LOGITS = 2 * batch.token_ids.shape[1] * policy.model.config.vocab_size
    learner = Learner(strategy, SPEC, ranks=ranks)
    metrics = [learner.update(batch, step=step) for step in range(NUM_STEPS)]
    weights = {name: tensor.detach().clone() for name, tensor in policy.model.named_parameters()}
    save_file(weights, result, metadata={"metrics": json.dumps(metrics)})


def main(rank: int, *, port: int, model_folder: Path, results: Path) -> None:
    """Be one rank."""
    torch.set_num_threads(1)
    stop = StopRequest()
    ranks = Ranks.meet(
        rank=rank, world_size=WORLD_SIZE, address="127.0.0.1", port=port, backend="gloo", stop=stop
    )
    for num_sequences in NUM_SEQUENCES:
        result = results / f"{rank}-{num_sequences}.safetensors"
        train(ranks, num_sequences=num_sequences, model_folder=model_folder, result=result)
    ranks.leave()


if __name__ == "__main__":
    # a fork, so that the imports are paid once
    own_rank = 1 if os.fork() else 0
    main(own_rank, port=int(sys.argv[1]), model_folder=Path(sys.argv[2]), results=Path(sys.argv[3]))
    if own_rank == 1:
        sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
