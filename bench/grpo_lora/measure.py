"""One policy, trained whole and with an adapter: what each trains, holds, sends and saves."""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from grpo_api.contract.run_config import ResolvedLora
from grpo_api.resolve import resolve_algorithm
from grpo_api.v1alpha1.spec import AlgorithmSpec, Dtype, OptimizerSpec
from grpo_bench.random_model import random_model
from grpo_runtime.model.lora import add_adapter
from grpo_runtime.model.source import LocalModel
from grpo_runtime.model.tiny import char_tokenizer
from grpo_runtime.rollouts.interface import Rollout
from grpo_runtime.trainer.batch import make_batch
from grpo_runtime.trainer.checkpoint.contents import RunState, complete_checkpoint
from grpo_runtime.trainer.checkpoint.shard import HostCopier, write_shard
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.learner import Learner
from grpo_runtime.trainer.policy import Policy
from grpo_runtime.trainer.strategy.ddp import DDPStrategy
from grpo_sync.model_shape import shape_of

_SPEC = resolve_algorithm(AlgorithmSpec(steps=10, optimizer=OptimizerSpec(learning_rate=1e-4)))
_PROMPT, _COMPLETION, _NUM_SEQUENCES = 8, 56, 16


@dataclass(frozen=True)
class Figures:
    """Of one way to train. Seconds are the least of several times."""

    num_trained: int
    moment_bytes: int
    sync_bytes: int
    checkpoint_bytes: int
    step_seconds: float
    read_seconds: float
    """To read all weights for engines, an adapter summed into them."""
    save_seconds: float


def measure(num_parameters: int, *, lora: ResolvedLora | None, ranks: Ranks, num_times: int) -> Figures:
    """Figures of a random model of this size in float32, with its weights or an adapter trained."""
    shape = shape_of(num_parameters)
    model = random_model(shape, vocabulary=shape.vocabulary, num_kv_heads=shape.num_kv_heads)
    if lora is not None:
        add_adapter(model, lora, seed=0, origin=LocalModel(Path(), "", commit=None))
    policy = Policy(model, temperature=1.0, dtype=Dtype.FLOAT32)
    strategy = DDPStrategy(policy, optimizer=_SPEC.optimizer, total_steps=_SPEC.steps or 0, ranks=ranks)
    strategy.load(None)
    learner = Learner(strategy, _SPEC, micro_batch_tokens=1024, ranks=ranks)
    one = Rollout(tuple(range(3, 3 + _PROMPT)), (9,) * _COMPLETION, (-7.0,) * _COMPLETION, (), True, "bench")
    batch = make_batch(
        [one] * _NUM_SEQUENCES,
        group_sizes=[_NUM_SEQUENCES],
        advantages=torch.linspace(-1, 1, _NUM_SEQUENCES),
        pad_id=0,
    )
    steps: list[float] = []
    reads: list[float] = []
    saves: list[float] = []
    folder_bytes = 0
    for step in range(num_times):
        with _seconds(steps):
            learner.update(batch, step=step)
        with _seconds(reads):
            sync_bytes = sum(tensor.nbytes for _, tensor in strategy.engine_weights().tensors())
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with _seconds(saves):
                copy = HostCopier(policy.model, strategy, rank=0, num_writers=1).copy()
                shard = write_shard(folder, copy, model=policy.model, rank=0, num_writers=1)
                complete_checkpoint(
                    folder,
                    model=policy.model,
                    tokenizer=char_tokenizer(max_length_tokens=64),
                    state=RunState(step=step + 1),
                    shards=[shard],
                )
            folder_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Figures(
        num_trained=sum(tensor.numel() for tensor in policy.trained_parameters().values()),
        moment_bytes=sum(tensor.nbytes for _, tensor in strategy.optimizer_state()),
        sync_bytes=sync_bytes,
        checkpoint_bytes=folder_bytes,
        step_seconds=min(steps),
        read_seconds=min(reads),
        save_seconds=min(saves),
    )


@contextlib.contextmanager
def _seconds(into: list[float]) -> Iterator[None]:
    start = time.monotonic()
    yield
    into.append(time.monotonic() - start)
