"""The file that a checkpoint's tensors are written to, as the safetensors library reads it."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from grpo_runtime.trainer.checkpoint.tensor_file import write_tensors

NUMBERS = torch.arange(24, dtype=torch.float32)
TENSORS = {
    "whole": NUMBERS.view(4, 6),
    "transposed": NUMBERS.view(4, 6).t(),
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0, 3),
    "bfloat16": NUMBERS.bfloat16()[:7],
    "half": NUMBERS.half(),
    "double": NUMBERS.double(),
    "long": NUMBERS.long(),
    "int": NUMBERS.int(),
    "bytes": torch.arange(5, dtype=torch.uint8),
    "mask": NUMBERS > 7,
}


def test_the_library_reads_what_was_written_of_every_dtype_and_layout(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    entry = write_tensors(path, TENSORS, metadata={"format": "pt"})
    found = load_file(path)
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name], tensor), name
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
    content = path.read_bytes()
    assert entry.num_bytes == len(content)
    assert entry.sha256 == hashlib.sha256(content).hexdigest()


def test_every_tensor_begins_at_a_multiple_of_its_elements(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    write_tensors(path, TENSORS)
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    for name, described in json.loads(content[8:begin]).items():
        assert (begin + described["data_offsets"][0]) % TENSORS[name].element_size() == 0, name


def test_a_tensor_larger_than_a_chunk_is_whole(tmp_path: Path) -> None:
    large = torch.randn(5_000_001)
    write_tensors(tmp_path / "large", {"large": large, "after": NUMBERS})
    found = load_file(tmp_path / "large")
    assert torch.equal(found["large"], large) and torch.equal(found["after"], NUMBERS)


def test_every_user_may_read_the_file(tmp_path: Path) -> None:
    write_tensors(tmp_path / "file", {"whole": NUMBERS})
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


def test_a_dtype_that_no_checkpoint_holds_is_named_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"rotation is torch\.complex64"):
        write_tensors(tmp_path / "file", {"rotation": torch.zeros(2, dtype=torch.complex64)})
    assert not list(tmp_path.iterdir())
