"""The weights of a model as transformers names their files, written while other threads run."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from huggingface_hub import split_torch_state_dict_into_shards

from grpo_runtime.trainer.checkpoint.tensor_file import write_tensors
from grpo_runtime.trainer.checkpoint.written_shard import INDEX


def write_weights(
    weights: Mapping[str, torch.Tensor],
    *,
    into: Path,
    max_file_size: str = "5GB",
    on_bytes: Callable[[int], None] = lambda _: None,
) -> None:
    """Write CPU tensors, of which no two share memory, to the folder `into`, which exists: to one file or,
    above `max_file_size`, to several with an index, as `save_torch_state_dict` does. That one writes a file
    in one call, in which no other thread of the process runs.

    `on_bytes` and what is raised are as in `write_tensors`.
    """
    split = split_torch_state_dict_into_shards(dict(weights), max_shard_size=max_file_size)
    for file, names in split.filename_to_tensors.items():
        found = {name: weights[name] for name in names}
        write_tensors(into / file, found, metadata={"format": "pt"}, on_bytes=on_bytes)
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (into / INDEX).write_text(json.dumps(index, indent=2))
