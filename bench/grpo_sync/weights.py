"""Synthetic weights: float32 in the memory of the trainer, sent in float32 or bfloat16."""

import math
from collections.abc import Iterator

import torch

from grpo_runtime.weight_sync.source import TensorSpec
from grpo_sync.model_shape import ModelShape, shape_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_BLOCK = 1 << 20


class SyntheticWeights:
    """A `WeightSource` of a transformer, whose tensors are cast when they are read, as a policy's are."""

    def __init__(self, num_bytes: int, *, dtype: str, device: str = "cpu") -> None:
        """Weights of about `num_bytes` bytes in `dtype`, which is what travels, on the device."""
        self._dtype = DTYPES[dtype]
        self.shape: ModelShape = shape_of(num_bytes // self._dtype.itemsize)
        self._shapes = self.shape.tensors()
        # one block again and again: the values do not matter, and random numbers are slow
        block = torch.randn(_BLOCK, generator=torch.Generator().manual_seed(1)) * 0.02
        self._master = block.to(device).repeat(math.ceil(self.shape.num_parameters / _BLOCK))

    @property
    def num_bytes(self) -> int:
        """What travels to each receiver."""
        return self.shape.num_parameters * self._dtype.itemsize

    def layout(self) -> tuple[TensorSpec, ...]:
        """See `WeightSource`."""
        return tuple(TensorSpec(name, shape, self._dtype) for name, shape in self._shapes.items())

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """See `WeightSource`."""
        start = 0
        for name, shape in self._shapes.items():
            end = start + math.prod(shape)
            yield name, self._master[start:end].view(shape).to(self._dtype)
            start = end
