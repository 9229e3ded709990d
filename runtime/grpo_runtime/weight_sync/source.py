"""What a trainer hands out as its weights: first what there is, then the tensors."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of the weights, whole and under its Hugging Face name, before it is there."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor itself."""
        return math.prod(self.shape) * self.dtype.itemsize


class WeightSource(Protocol):
    """All weights of a policy, in a fixed order.

    With a strategy that shards the weights, `tensors` is a collective operation: all ranks read it at the
    same time.
    """

    def layout(self) -> tuple[TensorSpec, ...]:
        """Layout of what `tensors` will give, in its order. Moves no data and meets no other rank."""
        ...

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor of the layout, in its order, each whole. May be read again and again.

        A tensor may have another dtype than the layout says: the copy casts it, in the same pass.
        """
        ...


def read_tensors(source: WeightSource) -> Iterator[tuple[TensorSpec, torch.Tensor]]:
    """The tensors of `source`, each with what the layout has at its index, whose name and shape it must have.

    Raises ValueError when a name is in the layout twice, and when a tensor is not the one that the layout has
    at its index.
    """
    layout = source.layout()
    require_distinct_names(layout)
    for spec, (name, tensor) in zip(layout, source.tensors(), strict=True):
        if (name, tuple(tensor.shape)) != (spec.name, spec.shape):
            found = f"{name} {list(tensor.shape)}"
            raise ValueError(f"the source of the weights gives {found} where its layout has {spec}")
        yield spec, tensor


def require_distinct_names(layout: tuple[TensorSpec, ...]) -> None:
    """Raises ValueError for a name that is there twice."""
    seen: set[str] = set()
    for spec in layout:
        if spec.name in seen:
            raise ValueError(f"{spec.name} is there twice")
        seen.add(spec.name)
