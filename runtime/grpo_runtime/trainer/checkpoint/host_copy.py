"""A rank's part of a checkpoint as a copy in CPU memory. Training waits for this copy only."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from grpo_runtime.locked_memory import locked_memory
from grpo_runtime.model.weights import NamedTensors
from grpo_runtime.trainer.checkpoint.shards import Shards
from grpo_runtime.trainer.reference import Reference
from grpo_runtime.trainer.strategy.interface import Strategy

_MIN_LOCKED_BYTES = 1 << 20
"""Below this a copy from a GPU takes no time, and locking pages does."""


@dataclass(frozen=True)
class CheckpointCopy:
    """What one rank writes: weights by the names of the model's parameters, the optimizer's tensors, and
    weights of a reference policy that changes.

    The memory is used again for the next copy.
    """

    model: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]
    reference: dict[str, torch.Tensor]


class HostCopier:
    """Copies this rank's part of what a checkpoint holds, and keeps the memory for the next copy: a page that
    is touched for the first time costs more than the bytes that are copied to it.

    With `num_writers` 1 rank 0 writes all, else each of so many ranks a part of about as many bytes. A rank
    then has 12 bytes of CPU memory for each parameter, for float32 weights and two moments, and 4 more with a
    `reference` that changes, divided by `num_writers`, from its first copy on. A sharded tensor is put
    together on the device before that, one at a time.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        strategy: Strategy,
        *,
        rank: int,
        num_writers: int,
        reference: Reference | None = None,
    ) -> None:
        self._model = model
        self._strategy = strategy
        self._reference = reference
        self._rank = rank
        self._num_writers = num_writers
        self._memory: dict[str, torch.Tensor] = {}

    def copy(self) -> CheckpointCopy:
        """Copy the strategy's tensors as they are now. All ranks of a sharded strategy call it at the same
        time. The copy before must not be read any more."""
        is_saved = self._names().__contains__
        weights = ((name, tensor) for name, tensor in self._strategy.model_state() if is_saved(name))
        followed = iter(()) if self._reference is None else self._reference.state()
        found = CheckpointCopy(
            model=dict(self._copied("model", weights)),
            optimizer=dict(self._copied("optimizer", self._strategy.optimizer_state())),
            reference=dict(self._copied("reference", followed)),
        )
        if self._strategy.device.type == "cuda":
            torch.cuda.current_stream(self._strategy.device).synchronize()
        return found

    def _names(self) -> set[str]:
        """Of the tensors that `save_pretrained` would save: a tied one once, under the name it has first."""
        named = (*self._model.named_parameters(), *self._model.named_buffers())
        return {name for name, _ in named} - set(self._model._keys_to_ignore_on_save or ())

    def _copied(self, kind: str, tensors: NamedTensors) -> Iterator[tuple[str, torch.Tensor]]:
        shards = Shards(self._num_writers)
        for name, tensor in tensors:
            if shards.owner_of_next(tensor.nbytes) == self._rank:
                memory = self._memory_for(f"{kind}/{name}", tensor)
                memory.copy_(tensor.detach(), non_blocking=True)
                yield name, memory

    def _memory_for(self, key: str, tensor: torch.Tensor) -> torch.Tensor:
        memory = self._memory.get(key)
        if memory is None or (memory.shape, memory.dtype) != (tensor.shape, tensor.dtype):
            memory = self._memory[key] = _empty_on_host(tensor)
        return memory


def _empty_on_host(like: torch.Tensor) -> torch.Tensor:
    if like.device.type != "cuda" or like.nbytes < _MIN_LOCKED_BYTES:
        return torch.empty(like.shape, dtype=like.dtype)
    return locked_memory(like.nbytes).view(like.dtype).view(like.shape)
