"""A volume without space left, named: the errors of the libraries that write do not say where they wrote."""

import contextlib
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

from grpo_runtime.errors import VolumeFullError

_FULL = {errno.ENOSPC, errno.EDQUOT}


@contextlib.contextmanager
def full_volume_named(folder: Path) -> Iterator[None]:
    """Turn what is raised when the volume of `folder` is full into VolumeFullError with its path and size."""
    try:
        yield
    except Exception as error:
        if not is_volume_full(error):
            raise
        usage = shutil.disk_usage(folder)
        raise VolumeFullError(
            f"the volume of {folder} is full, {_size(usage.free)} of {_size(usage.total)} are free: remove "
            "what is not needed, lower checkpoint.keep, or give checkpoint.claimName a larger claim"
        ) from error


def is_volume_full(error: BaseException) -> bool:
    """Whether this says that no space was left. safetensors has it in its text only."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    return any(f"(os error {number})" in str(error) for number in _FULL)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"
