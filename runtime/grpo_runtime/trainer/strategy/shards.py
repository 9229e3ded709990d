"""Whole tensors of shards and back: each rank has its rows of a tensor, as `fully_shard` cuts it."""

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from grpo_runtime.trainer.distributed import Ranks, peer_errors


class ShardGroup:
    """A process group of its own in which all ranks read and write sharded tensors, one after the other.

    Every rank makes the same calls in the same order, from one thread at a time. Other threads may use other
    groups meanwhile.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        with peer_errors():
            self._group = dist.new_group()

    @torch.no_grad()
    def whole(self, tensor: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The whole of `tensor` on every rank, as `dtype`. One that is not sharded is returned as it is."""
        if not isinstance(tensor, DTensor):
            return tensor.detach()
        shard = tensor.to_local()
        own = self._empty_shard(tensor, dtype=dtype or tensor.dtype)
        own[: shard.shape[0]].copy_(shard)
        rows = own.new_empty((self._ranks.world_size * own.shape[0], *own.shape[1:]))
        with peer_errors():
            dist.all_gather(list(rows.split(own.shape[0])), own, group=self._group)
        return rows[: tensor.shape[0]]

    @torch.no_grad()
    def take(self, tensor: torch.Tensor, *, whole: torch.Tensor | None) -> None:
        """Copy rank 0's `whole` into `tensor`, or this rank's shard of it. The other ranks give None."""
        if not isinstance(tensor, DTensor):
            if whole is not None:
                tensor.copy_(whole)
            with peer_errors():
                dist.broadcast(tensor, src=0, group=self._group)
            return
        shard = tensor.to_local()
        own = self._empty_shard(tensor, dtype=tensor.dtype)
        with peer_errors():
            dist.scatter(own, self._cut(whole, like=own), src=0, group=self._group)
        shard.copy_(own[: shard.shape[0]])

    def _cut(self, whole: torch.Tensor | None, *, like: torch.Tensor) -> list[torch.Tensor] | None:
        """What each rank gets of rank 0's tensor, all of the same shape."""
        if whole is None:
            return None
        rows = like.new_zeros((self._ranks.world_size * like.shape[0], *like.shape[1:]))
        rows[: whole.shape[0]].copy_(whole)
        return list(rows.split(like.shape[0]))

    def _empty_shard(self, tensor: DTensor, *, dtype: torch.dtype) -> torch.Tensor:
        """As many rows of `tensor` as the first shard has; the last ones may have fewer, and are padded."""
        num_rows = -(-tensor.shape[0] // self._ranks.world_size)
        return tensor.to_local().new_zeros((num_rows, *tensor.shape[1:]), dtype=dtype)
