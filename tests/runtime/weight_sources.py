"""Weights for tests that need no policy."""

from collections.abc import Iterable, Iterator

import torch

from grpo_runtime.weight_sync.source import TensorSpec


class FixedWeights:
    """A `WeightSource` of the tensors given."""

    def __init__(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._tensors = list(tensors)

    def layout(self) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(name, tuple(tensor.shape), tensor.dtype) for name, tensor in self._tensors)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self._tensors)
