"""Full volumes: /dev/full answers every write with the kernel's own error."""

import errno
from pathlib import Path

import pytest
from safetensors import SafetensorError

from grpo_runtime.errors import VolumeFullError
from grpo_runtime.storage.full_volume import full_volume_named

FULL = Path("/dev/full")
"""Tests only open it: a rename onto it would replace the device."""


def test_a_write_to_a_full_volume_names_the_volume_and_the_fix(tmp_path: Path) -> None:
    with (
        pytest.raises(VolumeFullError, match=r"lower checkpoint\.keep") as raised,
        full_volume_named(tmp_path),
        FULL.open("w") as file,
    ):
        file.write("x")
        file.flush()
    assert str(tmp_path) in str(raised.value)


def test_safetensors_own_error_for_a_full_volume_is_understood(tmp_path: Path) -> None:
    message = "Error while serializing: I/O error: No space left on device (os error 28)"
    with pytest.raises(VolumeFullError), full_volume_named(tmp_path):
        raise SafetensorError(message)


def test_a_folder_that_could_not_even_be_made_is_on_a_full_volume_too(tmp_path: Path) -> None:
    folder = tmp_path / "weights" / "copy"
    with pytest.raises(VolumeFullError, match=f"the volume of {folder} is full"), full_volume_named(folder):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), full_volume_named(tmp_path):
        (tmp_path / "nothing").read_text()
