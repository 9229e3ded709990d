"""Brings a policy to the device it is trained on. Rank 0 has loaded it, the other ranks have it on meta."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from grpo_runtime.errors import UserError
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.strategy.interface import Spreading


@torch.no_grad()
def place(module: nn.Module, *, device: torch.device, ranks: Ranks) -> None:
    """Give every tensor of `module` memory on `device`, and on every rank the values of rank 0, one by one.
    Tied parameters stay tied, and those that are sharded already stay as they are.

    All ranks call it at the same time. Raises UserError on all of them when the model of one has other
    tensors than that of rank 0.
    """
    _require_same_tensors(module, device=device, ranks=ranks)
    placed: dict[torch.Tensor, torch.Tensor] = {}
    for part in module.modules():
        tables: tuple[dict[str, Any], ...] = (part._parameters, part._buffers)
        for tensors in tables:
            for name, tensor in tensors.items():
                if tensor is None or _is_sharded(tensor):
                    continue
                if tensor not in placed:
                    placed[tensor] = _on_device(tensor, device)
                    # as bytes, because gloo does not send every dtype
                    ranks.broadcast(placed[tensor].view(-1).view(torch.uint8))
                tensors[name] = placed[tensor]


def on_every_rank(trained: Mapping[str, nn.Parameter], *, ranks: Ranks) -> Spreading:
    """How a policy is spread of which each rank has all, as of the one with the parameters `trained`."""

    def take(tensor: torch.Tensor, whole: torch.Tensor | None) -> None:
        if whole is not None:
            tensor.copy_(whole)
        ranks.broadcast(tensor)

    return Spreading(trained=trained, whole=lambda tensor: tensor, take=take)


def _require_same_tensors(module: nn.Module, *, device: torch.device, ranks: Ranks) -> None:
    """Rank 0 has read the weights, the others the configuration. transformers does not tie a head for which
    the files have weights of its own, whatever the configuration says."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    text = repr([(name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors])
    own = torch.tensor(list(hashlib.sha256(text.encode()).digest()), dtype=torch.int32, device=device)
    first = ranks.broadcast(own.clone())
    if ranks.sum(torch.tensor(not own.equal(first), dtype=torch.int32, device=device)):
        raise UserError(
            "the model's config.json and its files disagree about its weights, mostly about whether the head "
            "is tied to the embeddings: correct tie_word_embeddings"
        )


def _is_sharded(tensor: torch.Tensor) -> bool:
    """Whether FSDP2 or ZeRO-3 has cut it."""
    return isinstance(tensor, DTensor) or hasattr(tensor, "ds_tensor")


def _on_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    if tensor.device == device:
        return tensor
    moved = torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.to(device)
    return nn.Parameter(moved, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else moved
