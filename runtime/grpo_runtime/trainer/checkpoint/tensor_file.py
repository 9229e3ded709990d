"""Writes safetensors files once through: each is hashed while it is written, and on disk before it is done.

The safetensors library writes a file in one call, and while it does so no other thread of the process runs.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from huggingface_hub import split_torch_state_dict_into_shards

from grpo_runtime.storage.safetensors_header import SAFETENSORS_DTYPES, HeaderEntry, header_of
from grpo_runtime.trainer.checkpoint.manifest import FileEntry

INDEX = "model.safetensors.index.json"
"""Tells transformers and vLLM which weight is in which of several files."""
_CHUNK_BYTES = 8 << 20


def write_weights(
    weights: Mapping[str, torch.Tensor],
    *,
    into: Path,
    max_file_size: str = "5GB",
    on_bytes: Callable[[int], None] = lambda _: None,
) -> None:
    """Write CPU tensors, of which no two share memory, to the folder `into`, which exists: to one file or,
    above `max_file_size`, to several with an index, as `save_torch_state_dict` of huggingface_hub does.

    `on_bytes` and what is raised are as in `write_tensors`.
    """
    split = split_torch_state_dict_into_shards(dict(weights), max_shard_size=max_file_size)
    for file, names in split.filename_to_tensors.items():
        found = {name: weights[name] for name in names}
        write_tensors(into / file, found, metadata={"format": "pt"}, on_bytes=on_bytes)
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (into / INDEX).write_text(json.dumps(index, indent=2))


def write_tensors(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    *,
    read: Callable[[str], torch.Tensor] | None = None,
    metadata: Mapping[str, str] | None = None,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> FileEntry:
    """Write CPU tensors to `path`, which every user may read, and return its size and digest.

    With `read`, `tensors` only say dtype and shape, and it gives each by its name, once and when it is
    written: those of one layer, whose names begin alike, one after the other. `on_bytes` is called with how
    many bytes each write has added. A tensor that is not contiguous is copied while it is written. Raises
    TypeError, before anything is written, for a dtype that is not in the table, and OSError as writing does.
    """
    # large elements first, as the library does, so that each tensor begins at a multiple of its element
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header = _header({name: tensors[name] for name in names}, metadata)
    digest, num_bytes = hashlib.sha256(), 0
    with path.open("wb", buffering=0) as file:
        for chunk in _chunks(header, map(read or tensors.__getitem__, names)):
            digest.update(chunk)
            num_bytes += _write_all(file.fileno(), chunk)
            on_bytes(len(chunk))
        os.fchmod(file.fileno(), 0o644)
        os.fsync(file.fileno())
    return FileEntry(num_bytes=num_bytes, sha256=digest.hexdigest())


def _header(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None) -> bytes:
    entries = []
    for name, tensor in tensors.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in SAFETENSORS_DTYPES:
            raise TypeError(f"{name} is {tensor.dtype}, which no checkpoint holds")
        entries.append(HeaderEntry(name, dtype, tuple(tensor.shape), tensor.nbytes))
    return header_of(entries, metadata)


def _chunks(header: bytes, tensors: Iterator[torch.Tensor]) -> Iterator[memoryview]:
    yield memoryview(header)
    for tensor in tensors:
        data = tensor.contiguous().view(-1).view(torch.uint8).numpy().data
        for begin in range(0, len(data), _CHUNK_BYTES):
            yield data[begin : begin + _CHUNK_BYTES]


def _write_all(descriptor: int, chunk: memoryview) -> int:
    written = 0
    while written < len(chunk):
        written += os.write(descriptor, chunk[written:])
    return written
