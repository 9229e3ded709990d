"""A rank's shard of a checkpoint: which tensors it has, their copy in CPU memory, their files, and how rank 0
learns of them.

Training waits for the copy only. Rank 0 has all tensors, or with `checkpoint.shared` each rank its shard.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from grpo_api.model import ApiModel
from grpo_runtime.locked_memory import locked_memory
from grpo_runtime.model.lora import ADAPTER_WEIGHTS, adapter_tensors, has_adapter
from grpo_runtime.model.weights import NamedTensors, WeightsByName
from grpo_runtime.trainer.checkpoint.manifest import FileEntry
from grpo_runtime.trainer.checkpoint.tensor_file import write_tensors
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.reference import Reference
from grpo_runtime.trainer.strategy.interface import Strategy

MODEL = "model"
"""The folder of a checkpoint that transformers and vLLM can load."""
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
        """Names of the tensors that `save_pretrained` would save: a tied one once, under the name it has
        first."""
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


class Shards:
    """Divides tensors over ranks by bytes. Each goes whole to the rank that has the fewest so far, the lowest
    of several, so every rank that asks in the same order gets the same answers."""

    def __init__(self, num_ranks: int) -> None:
        self._num_bytes = [0] * num_ranks

    def owner_of_next(self, num_bytes: int) -> int:
        """The rank that writes the next tensor."""
        owner = self._num_bytes.index(min(self._num_bytes))
        self._num_bytes[owner] += num_bytes
        return owner


def _empty_on_host(like: torch.Tensor) -> torch.Tensor:
    if like.device.type != "cuda" or like.nbytes < _MIN_LOCKED_BYTES:
        return torch.empty(like.shape, dtype=like.dtype)
    return locked_memory(like.nbytes).view(like.dtype).view(like.shape)


class WrittenShard(ApiModel):
    """The files that one rank has written. It is sent to rank 0."""

    files: dict[str, FileEntry]
    """By path in the checkpoint."""
    weights: dict[str, str]
    """By name of a weight as transformers saves it: the file in the directory `model`."""
    num_weight_bytes: int


def write_shard(
    folder: Path,
    copy: CheckpointCopy,
    *,
    model: PreTrainedModel,
    rank: int,
    num_writers: int,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> WrittenShard:
    """Write what this rank has copied to the unfinished checkpoint in `folder`; it is on disk then.

    `model` only gives what transformers calls the weights, and peft those of an adapter, which has one
    writer. A rank whose copy has no tensors of a kind writes no file of it.
    """
    suffix = f"-{rank + 1:05d}-of-{num_writers:05d}" if num_writers > 1 else ""
    read = None
    if has_adapter(model):
        weights, model_file = adapter_tensors(copy.model), ADAPTER_WEIGHTS
    else:
        by_name = WeightsByName(model, copy.model)
        weights, read = by_name.layout, by_name.read
        model_file = f"model{suffix}.safetensors"
    files = {}
    (folder / MODEL).mkdir(exist_ok=True)
    if weights:
        entry = write_tensors(
            folder / MODEL / model_file, weights, read=read, metadata={"format": "pt"}, on_bytes=on_bytes
        )
        files[f"{MODEL}/{model_file}"] = entry
    for kind, tensors in (("optimizer", copy.optimizer), ("reference", copy.reference)):
        if tensors:
            name = f"{kind}{suffix}.safetensors"
            files[name] = write_tensors(folder / name, tensors, on_bytes=on_bytes)
    return WrittenShard(
        files=files,
        weights=dict.fromkeys(weights, model_file),
        num_weight_bytes=sum(weight.nbytes for weight in weights.values()),
    )


def index_of(shards: Sequence[WrittenShard]) -> dict[str, Any]:
    """The content of `tensor_file.INDEX`."""
    return {
        "metadata": {"total_size": sum(shard.num_weight_bytes for shard in shards)},
        "weight_map": {name: file for shard in shards for name, file in shard.weights.items()},
    }


class ShardChannel:
    """Brings each rank's WrittenShard to rank 0, from the thread that wrote it to the one that commits, while
    the main threads train. All ranks make it at the same time.

    A rank that cannot write sends nothing: it ends with the cause, which rank 0 learns as PeerLostError.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._channel = ranks.open_channel()
        self._world_size = ranks.world_size

    def send(self, shard: WrittenShard) -> None:
        """The other ranks: report to rank 0."""
        data = torch.frombuffer(bytearray(shard.model_dump_json().encode()), dtype=torch.uint8)
        self._channel.send(torch.tensor(len(data)))
        self._channel.send(data)

    def receive(self) -> list[WrittenShard]:
        """Rank 0: wait for all others. Raises PeerLostError when one is gone."""
        return [self._receive_from(rank) for rank in range(1, self._world_size)]

    def _receive_from(self, rank: int) -> WrittenShard:
        size = self._channel.receive(torch.tensor(0), rank=rank)
        data = self._channel.receive(torch.empty(int(size), dtype=torch.uint8), rank=rank)
        return WrittenShard.model_validate_json(data.numpy().tobytes())
