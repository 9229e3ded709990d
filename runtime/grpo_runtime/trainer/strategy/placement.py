"""Brings a policy to the device it is trained on. Rank 0 has loaded it, the other ranks have it on meta."""

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from grpo_runtime.trainer.distributed import Ranks


@torch.no_grad()
def place(module: nn.Module, *, device: torch.device, ranks: Ranks) -> None:
    """Give every tensor of `module` memory on `device`, and on every rank the values of rank 0, one by one.
    Tied parameters stay tied, and those that are sharded already stay as they are.

    All ranks call it at the same time.
    """
    placed: dict[torch.Tensor, torch.Tensor] = {}
    for part in module.modules():
        tables: tuple[dict[str, Any], ...] = (part._parameters, part._buffers)
        for tensors in tables:
            for name, tensor in tensors.items():
                if tensor is None or isinstance(tensor, DTensor):
                    continue
                if tensor not in placed:
                    placed[tensor] = _on_device(tensor, device)
                    # as bytes, because gloo does not send every dtype
                    ranks.broadcast(placed[tensor].view(-1).view(torch.uint8))
                tensors[name] = placed[tensor]


def _on_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    if tensor.device == device:
        return tensor
    moved = torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.to(device)
    return nn.Parameter(moved, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else moved
