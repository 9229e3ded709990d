"""How many bytes a sync spares that sends what changed: measured over real steps of training."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from grpo_api.resolve import resolve_algorithm
from grpo_api.v1alpha1.spec import AlgorithmSpec, Dtype, OptimizerSpec
from grpo_bench.random_model import random_model
from grpo_runtime.rollouts.interface import Rollout
from grpo_runtime.trainer.batch import Batch, make_batch
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.learner import Learner
from grpo_runtime.trainer.policy import Policy
from grpo_runtime.trainer.strategy.ddp import DDPStrategy
from grpo_runtime.weight_sync.sparse.changes import exchange
from grpo_runtime.weight_sync.sparse.sender import SparsePreparation, SparseWeights
from grpo_runtime.weight_sync.stream.host_copy import HostCopy
from grpo_runtime.weight_sync.tag import make_digest
from grpo_sync.model_shape import shape_of

_PROMPT, _COMPLETION, _NUM_SEQUENCES = 8, 56, 16
_NEVER = 10**9


@dataclass(frozen=True)
class SparseStep:
    """One sync after a step. Bytes are those that a group is sent, with index and tag."""

    whole_bytes: int
    sent_bytes: int
    num_changed: int
    copy_seconds: float
    """To copy and to compare all weights, as the trainer does."""
    apply_seconds: float
    """To put the changes into the kept weights and to compute the tag of all, as an engine does."""

    @property
    def share(self) -> float:
        """Of the bytes of all weights."""
        return self.sent_bytes / self.whole_bytes


def measure_sparse(
    num_parameters: int,
    *,
    dtype: Dtype,
    learning_rate: float,
    num_steps: int,
    ranks: Ranks,
    on_step: Callable[[SparseStep], None],
) -> list[SparseStep]:
    """The syncs after `num_steps` steps of a random model of this size, whose weights travel in `dtype`."""
    shape = shape_of(num_parameters)
    model = random_model(shape, vocabulary=shape.vocabulary, num_kv_heads=shape.num_kv_heads)
    spec = resolve_algorithm(
        AlgorithmSpec(steps=num_steps, optimizer=OptimizerSpec(learning_rate=learning_rate))
    )
    policy = Policy(model, temperature=1.0, dtype=dtype)
    strategy = DDPStrategy(policy, optimizer=spec.optimizer, total_steps=num_steps, ranks=ranks)
    strategy.load(None)
    learner = Learner(strategy, spec, micro_batch_tokens=1024, ranks=ranks)
    prepare = SparsePreparation(HostCopy, full_every=_NEVER)
    before = prepare(strategy.engine_weights())
    before.wait_until_read()
    kept = before.copy.memory.stream.clone()
    steps = []
    for step in range(num_steps):
        learner.update(_random_batch(shape.vocabulary, seed=step), step=step)
        start = time.monotonic()
        weights = prepare(strategy.engine_weights())
        weights.wait_until_ready(timeout_seconds=600.0)
        copied = time.monotonic() - start
        start = time.monotonic()
        _apply(weights, kept)
        applied = time.monotonic() - start
        sent = weights.num_update_bytes
        assert sent is not None  # `wait_until_ready` came before
        changed = 0 if weights.changes is None else weights.changes.num_changed
        steps.append(SparseStep(weights.num_bytes, sent, changed, copied, applied))
        on_step(steps[-1])
    return steps


def _random_batch(vocabulary: int, *, seed: int) -> Batch:
    """Samples of random tokens, other ones at each step."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, vocabulary, (count,), generator=generator).tolist())

    rollouts = [
        Rollout(tokens(_PROMPT), tokens(_COMPLETION), (-7.0,) * _COMPLETION, (), True, "bench")
        for _ in range(_NUM_SEQUENCES)
    ]
    advantages = torch.randn(_NUM_SEQUENCES, generator=generator)
    return make_batch(rollouts, group_sizes=[len(rollouts)], advantages=advantages, pad_id=0)


def _apply(weights: SparseWeights, kept: torch.Tensor) -> None:
    """What an engine does. Raises ValueError when that does not lead to the trainer's weights."""
    manifest = weights.copy.manifest
    if weights.changes is None:
        kept.copy_(weights.copy.memory.stream)
        return
    body = weights.changes.body.clone()
    exchange(kept, body, manifest=manifest, table=weights.changes.table)
    digest = make_digest(weights.copy.tag_algorithm, weights.copy.key, manifest.tensors)
    digest.update(kept[: manifest.num_bytes])
    if digest.tag() != weights.copy.tag:
        raise ValueError("the changes do not lead to the trainer's weights")
