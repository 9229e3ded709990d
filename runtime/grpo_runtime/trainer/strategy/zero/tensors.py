"""Whole tensors of ZeRO's parts and back.

DeepSpeed lays the parameters of a group of the optimizer end to end, and a rank's AdamW has one long vector
of them. With ZeRO-1 and 2 the whole is cut once, so a rank has a piece of some parameters and nothing of the
others. With ZeRO-3 each parameter is cut, so a rank has as much of each as all others.
"""

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from grpo_runtime.trainer.distributed import peer_errors


class ZeroTensors(Protocol):
    """Where DeepSpeed keeps what. `group` is the process group in which all ranks call at the same time."""

    def vector(self, parameter: nn.Parameter) -> torch.Tensor:
        """This rank's master weights of all parameters that are in one vector with `parameter`."""
        ...

    def whole(
        self, parameter: nn.Parameter, vector: torch.Tensor, *, numel: int, group: dist.ProcessGroup
    ) -> torch.Tensor:
        """All `numel` elements of `parameter`, flat, of which each rank has some in its `vector`."""
        ...

    def take(self, parameter: nn.Parameter, vector: torch.Tensor, *, whole: torch.Tensor) -> None:
        """Copy this rank's part of the flat `whole` to its offset in `vector`."""
        ...

    def whole_weight(
        self, parameter: nn.Parameter, *, numel: int, group: dist.ProcessGroup, dtype: torch.dtype
    ) -> torch.Tensor:
        """All `numel` elements of the weights, flat, as `dtype`."""
        ...

    def take_weight(self, parameter: nn.Parameter, *, whole: torch.Tensor) -> None:
        """Copy this rank's part of the flat `whole` into the weights that the passes read."""
        ...


class PiecesOfAll:
    """ZeRO-1 and 2. The weights that the passes read are whole on every rank."""

    def __init__(self, optimizer: Any, *, device: torch.device) -> None:
        """`optimizer` is DeepSpeed's."""
        self._vectors = optimizer.single_partition_of_fp32_groups
        self._groups = {p: index for index, group in enumerate(optimizer.bit16_groups) for p in group}
        self._device = device

    def vector(self, parameter: nn.Parameter) -> torch.Tensor:
        """This rank's master weights of all parameters that are in one vector with `parameter`."""
        vector: torch.Tensor = self._vectors[self._groups[parameter]]
        return vector

    def whole(
        self, parameter: nn.Parameter, vector: torch.Tensor, *, numel: int, group: dist.ProcessGroup
    ) -> torch.Tensor:
        """All elements of `parameter`, flat, of which each rank has some in its `vector`."""
        whole = torch.zeros(numel, dtype=vector.dtype, device=self._device)
        own, start = self._piece(parameter, vector)
        whole[start : start + own.numel()].copy_(own)
        with peer_errors():
            # the others add zeros
            dist.all_reduce(whole, group=group)
        return whole

    def take(self, parameter: nn.Parameter, vector: torch.Tensor, *, whole: torch.Tensor) -> None:
        """Copy this rank's part of `whole` to its offset in `vector`."""
        own, start = self._piece(parameter, vector)
        own.copy_(whole[start : start + own.numel()])

    def whole_weight(
        self, parameter: nn.Parameter, *, numel: int, group: dist.ProcessGroup, dtype: torch.dtype
    ) -> torch.Tensor:
        """All elements of the weights, flat, as `dtype`."""
        return parameter.detach().to(dtype).view(-1)

    def take_weight(self, parameter: nn.Parameter, *, whole: torch.Tensor) -> None:
        """Copy this rank's part of `whole` into the weights that the passes read."""
        parameter.copy_(whole.view(parameter.shape))

    def _piece(self, parameter: nn.Parameter, vector: torch.Tensor) -> tuple[torch.Tensor, int]:
        """The elements of `parameter` in `vector`, which may be none, and where they begin in it."""
        mapping: Any = parameter._hp_mapping  # type: ignore[attr-defined]
        if mapping is None:
            return vector[:0], 0
        place = mapping.hp_fragment_address
        return vector[place.start : place.start + place.numel], mapping.lp_fragment_address.start


class PieceOfEach:
    """ZeRO-3. The last piece of a parameter may end with padding, so that all are of one length."""

    def __init__(self, optimizer: Any, *, device: torch.device) -> None:
        """`optimizer` is DeepSpeed's."""
        self._optimizer = optimizer
        self._device = device
        self._rank = dist.get_rank()

    def vector(self, parameter: nn.Parameter) -> torch.Tensor:
        """This rank's master weights of all parameters that are in one vector with `parameter`."""
        index, _, _ = self._place(parameter)
        vector: torch.Tensor = self._optimizer.fp32_partitioned_groups_flat[index]
        return vector

    def whole(
        self, parameter: nn.Parameter, vector: torch.Tensor, *, numel: int, group: dist.ProcessGroup
    ) -> torch.Tensor:
        """All elements of `parameter`, flat, of which each rank has some in its `vector`."""
        return self._gather(self._own(parameter, vector), numel=numel, group=group)

    def take(self, parameter: nn.Parameter, vector: torch.Tensor, *, whole: torch.Tensor) -> None:
        """Copy this rank's part of `whole` to its offset in `vector`."""
        self._fill(self._own(parameter, vector), whole)

    def whole_weight(
        self, parameter: nn.Parameter, *, numel: int, group: dist.ProcessGroup, dtype: torch.dtype
    ) -> torch.Tensor:
        """All elements of the weights, flat, as `dtype`. A part is brought into `dtype` before it travels."""
        return self._gather(self._weight(parameter).to(dtype), numel=numel, group=group)

    def take_weight(self, parameter: nn.Parameter, *, whole: torch.Tensor) -> None:
        """Copy this rank's part of `whole` into the weights that the passes read."""
        self._fill(self._weight(parameter), whole)

    def _weight(self, parameter: nn.Parameter) -> torch.Tensor:
        """This rank's part of the weights."""
        weight: torch.Tensor = parameter.ds_tensor.data  # type: ignore[attr-defined]
        return weight

    def _gather(self, own: torch.Tensor, *, numel: int, group: dist.ProcessGroup) -> torch.Tensor:
        own = own.to(self._device)
        whole = own.new_empty(dist.get_world_size() * own.numel())
        with peer_errors():
            dist.all_gather(list(whole.split(own.numel())), own, group=group)
        return whole[:numel]

    def _fill(self, own: torch.Tensor, whole: torch.Tensor) -> None:
        part = whole[self._rank * own.numel() : (self._rank + 1) * own.numel()]
        own[: part.numel()].copy_(part)

    def _own(self, parameter: nn.Parameter, vector: torch.Tensor) -> torch.Tensor:
        _, start, numel = self._place(parameter)
        return vector[start : start + numel]

    def _place(self, parameter: nn.Parameter) -> tuple[int, int, int]:
        """Which vector it is in, from where on, and how many elements."""
        index, start, numel = self._optimizer.grad_position[self._optimizer.get_param_id(parameter)]
        return index, start, numel
