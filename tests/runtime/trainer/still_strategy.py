"""A strategy whose numbers a test sets: what a save reads of one, in this process alone."""

from pathlib import Path
from typing import Any

import torch

from grpo_runtime.model.load import load_policy, load_tokenizer
from grpo_runtime.model.source import LocalModel
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.model.weights import NamedTensors
from grpo_runtime.trainer.checkpoint.saver import Saver
from grpo_runtime.trainer.checkpoint.store import CheckpointStore
from grpo_runtime.trainer.distributed import Ranks, StopRequest
from grpo_runtime.trainer.policy import MASTER_DTYPE


class StillPolicy:
    """A policy, wherever it is, of which all weights become one number, and moments that become another."""

    is_sharded = False

    def __init__(self, model: Any) -> None:
        self.model = model
        self.device = model.device
        self._moments = {
            f"exp_avg/{name}": torch.zeros_like(parameter)
            for name, parameter in self.model.named_parameters()
        }

    @torch.no_grad()
    def set(self, number: float) -> None:
        """Train, so to speak: by copies, for a null GPU computes nothing."""
        for tensors, value in ((self.model.parameters(), number), (self._moments.values(), -number)):
            for tensor in tensors:
                tensor.copy_(torch.full(tensor.shape, value))

    def model_state(self) -> NamedTensors:
        yield from self.model.state_dict().items()

    def optimizer_state(self) -> NamedTensors:
        yield from self._moments.items()


class StillStrategy(StillPolicy):
    """The tiny one."""

    def __init__(self, folder: Path) -> None:
        write_tiny_model(folder)
        super().__init__(load_policy(folder, dtype=MASTER_DTYPE))
        self.tokenizer = load_tokenizer(folder)


def store(folder: Path, *, attempt: int = 1, keep: int = 2) -> CheckpointStore:
    """The checkpoints in `folder`."""
    return CheckpointStore(folder / "checkpoints", job_uid="uid", attempt=attempt, keep=keep)


def saver_of(
    strategy: StillStrategy, target: CheckpointStore, *, output_dir: Path, tokenizer: Any = None
) -> Saver:
    """Rank 0's, without other ranks."""
    return Saver(
        target,
        model=strategy.model,
        strategy=strategy,  # type: ignore[arg-type]
        tokenizer=tokenizer or strategy.tokenizer,
        ranks=Ranks(rank=0, world_size=1, stop=StopRequest()),
        output_dir=output_dir,
        newest_step=None,
        origin=LocalModel(output_dir, "builtin://tiny", None),
        is_shared=False,
    )
