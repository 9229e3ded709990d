"""The tensors of a checkpoint as files: all from one rank, or from each rank its shard."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from grpo_api.model import ApiModel
from grpo_runtime.model.adapter_files import WEIGHTS as ADAPTER_WEIGHTS
from grpo_runtime.model.adapter_files import adapter_tensors
from grpo_runtime.model.lora import has_adapter
from grpo_runtime.model.weights import WeightsByName
from grpo_runtime.trainer.checkpoint.host_copy import CheckpointCopy
from grpo_runtime.trainer.checkpoint.manifest import FileEntry
from grpo_runtime.trainer.checkpoint.tensor_file import write_tensors

MODEL = "model"
INDEX = "model.safetensors.index.json"
"""Tells transformers and vLLM which weight is in which of several files."""


class WrittenShard(ApiModel):
    """What one rank has written. It is sent to rank 0."""

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

    `model` only tells what transformers calls the weights, and peft those of an adapter, which has one
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
    """The content of `INDEX`."""
    return {
        "metadata": {"total_size": sum(shard.num_weight_bytes for shard in shards)},
        "weight_map": {name: file for shard in shards for name, file in shard.weights.items()},
    }
