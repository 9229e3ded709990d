"""A stand-in for a GPU with little memory: DDP on CPU, whose last rank fails as torch does on a GPU."""

import os

import torch

from grpo_api.v1alpha1.spec import OptimizerSpec
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.policy import Policy
from grpo_runtime.trainer.strategy.ddp import DDPStrategy


class StandInForSmallGpu(DDPStrategy):
    """From pass FAKE_FULL_FROM of its attempt on (from 1), it has room for FAKE_ROOM_TOKENS."""

    def __init__(
        self,
        policy: Policy,
        *,
        optimizer: OptimizerSpec,
        total_steps: int,
        ranks: Ranks,
        device: torch.device | None = None,
    ) -> None:
        self._num_passes = 0
        self._is_full_from = 10**9
        super().__init__(policy, optimizer=optimizer, total_steps=total_steps, ranks=ranks, device=device)
        self._num_passes = 0
        if ranks.rank == ranks.world_size - 1:
            self._is_full_from = int(os.environ["FAKE_FULL_FROM"])
        self._room = int(os.environ["FAKE_ROOM_TOKENS"])

    def score(self, token_ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self._num_passes += 1
        if self._num_passes >= self._is_full_from and token_ids.numel() > self._room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has less.")
        return super().score(token_ids, mask)
