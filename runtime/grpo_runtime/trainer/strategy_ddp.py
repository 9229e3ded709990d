"""Data parallelism with torch's DDP: every rank holds the whole policy and trains on part of the batch."""

import contextlib
from collections.abc import Iterator

import torch
from torch.nn.parallel import DistributedDataParallel

from grpo_runtime.trainer.distributed import Ranks, peer_errors
from grpo_runtime.trainer.policy import Policy


class DDPStrategy:
    """The policy spread over `ranks`; its weights are rank 0's."""

    def __init__(self, policy: Policy, *, ranks: Ranks) -> None:
        self.policy = policy
        self._world_size = ranks.world_size
        with peer_errors():
            self._replica = DistributedDataParallel(policy)
        self._settle_buckets()

    @contextlib.contextmanager
    def micro_batch(self, *, is_last: bool) -> Iterator[None]:
        """Around forward and backward of one part of a step; ranks meet in the last one only."""
        with contextlib.nullcontext() if is_last else self._replica.no_sync():
            yield

    def score(self, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`Policy.forward`, with gradients that `backward` sums over ranks."""
        with peer_errors():
            return self._replica(token_ids)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of the sum of all ranks' `loss` to every rank's parameters."""
        with peer_errors():
            # DDP averages gradients
            (loss * self._world_size).backward()

    def _settle_buckets(self) -> None:
        """Spend DDP's first backward pass, after which it arranges its buckets anew, on nothing.

        Otherwise a resumed run would sum its first step in another order than the run it continues.
        """
        for _ in range(2):
            logprobs, _ = self.score(torch.zeros((1, 2), dtype=torch.int64, device=self.policy.device))
            self.backward(logprobs.sum())
            self.policy.zero_grad()
