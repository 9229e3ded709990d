"""Volumes that are full, where /dev/full answers with the kernel's own error, or that cannot be used."""

import errno
import os
from pathlib import Path

import pytest
from safetensors import SafetensorError

from grpo_api.contract.exit_codes import exit_policy
from grpo_runtime.errors import VolumeFullError, VolumeUnusableError
from grpo_runtime.storage.volume_errors import volume_errors_named

FULL = Path("/dev/full")
"""Tests only open it: a rename onto it would replace the device."""


def test_a_write_to_a_full_volume_names_the_volume_and_the_fix(tmp_path: Path) -> None:
    with (
        pytest.raises(VolumeFullError, match=r"lower checkpoint\.keep") as raised,
        volume_errors_named(tmp_path),
        FULL.open("w") as file,
    ):
        file.write("x")
        file.flush()
    assert str(tmp_path) in str(raised.value)


def test_safetensors_own_error_for_a_full_volume_is_understood(tmp_path: Path) -> None:
    message = "Error while serializing: I/O error: No space left on device (os error 28)"
    with pytest.raises(VolumeFullError), volume_errors_named(tmp_path):
        raise SafetensorError(message)


@pytest.mark.parametrize(
    ("number", "sentence"), [(errno.EROFS, "read-only"), (errno.EIO, "look at its storage")]
)
def test_safetensors_own_error_for_a_volume_that_cannot_be_used_is_understood(
    tmp_path: Path, number: int, sentence: str
) -> None:
    message = f"Error while serializing: I/O error: {os.strerror(number)} (os error {number})"
    with pytest.raises(VolumeUnusableError, match=sentence), volume_errors_named(tmp_path):
        raise SafetensorError(message)


def test_a_folder_that_could_not_even_be_made_is_on_a_full_volume_too(tmp_path: Path) -> None:
    folder = tmp_path / "weights" / "copy"
    with pytest.raises(VolumeFullError, match=f"the volume of {folder} is full"), volume_errors_named(folder):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.EROFS, r"is mounted read-only: give checkpoint\.claimName a claim"),
        (errno.EACCES, r"may not be written by user \d+ .*: give the folder in it to them$"),
        (errno.EIO, "Input/output error.*: look at its storage"),
        (errno.ESTALE, "Stale file handle"),
    ],
)
def test_a_volume_that_cannot_be_used_is_named_with_what_to_look_at(
    tmp_path: Path, number: int, sentence: str
) -> None:
    with (
        pytest.raises(VolumeUnusableError, match=f"the volume of {tmp_path} .*{sentence}") as raised,
        volume_errors_named(tmp_path),
    ):
        raise OSError(number, os.strerror(number))
    assert exit_policy(raised.value.exit_code).is_retried


def test_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), volume_errors_named(tmp_path):
        (tmp_path / "nothing").read_text()
