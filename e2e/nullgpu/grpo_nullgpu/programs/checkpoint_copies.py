"""Copies of weights and moments for a checkpoint, while training goes on at once and overwrites them: whether
each has what was there before. Nothing is computed: new values are copied to the GPU.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[4] / "bench"))

from grpo_bench.random_model import random_model
from grpo_gpu.shapes import SHAPES
from grpo_runtime.model.weights import NamedTensors
from grpo_runtime.trainer.checkpoint.host_copy import HostCopier
from grpo_runtime.trainer.device import training_device


class Training:
    """A policy on the GPU and moments of it, all of one value."""

    is_sharded = False

    def __init__(self) -> None:
        self.device = training_device(local_rank=0)
        self.model = random_model(SHAPES["tiny"], vocabulary=1 << 14, num_kv_heads=2).to(self.device)
        self._moments = {f"exp_avg/{name}": p.detach().clone() for name, p in self.model.named_parameters()}

    def model_state(self) -> NamedTensors:
        yield from self.model.state_dict().items()

    def optimizer_state(self) -> NamedTensors:
        yield from self._moments.items()

    @torch.no_grad()
    def set_all(self, value: float) -> None:
        for tensor in self._tensors():
            tensor.copy_(torch.full(tensor.shape, value), non_blocking=True)

    def _tensors(self) -> Iterator[torch.Tensor]:
        yield from self.model.parameters()
        yield from self._moments.values()


def main() -> None:
    training = Training()
    copier = HostCopier(training.model, training, rank=0, num_writers=1)  # type: ignore[arg-type]
    training.set_all(0.0)
    for step in range(3):
        copy = copier.copy()
        training.set_all(step + 1.0)
        copied = [*copy.model.values(), *copy.optimizer.values()]
        print("copied", len(copied) > 10 and all(bool((tensor == step).all()) for tensor in copied))


if __name__ == "__main__":
    main()
