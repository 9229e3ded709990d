"""Names the volume that has no space left: the errors of libraries do not say where they wrote."""

import contextlib
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

from grpo_runtime.errors import VolumeFullError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_FIX = "remove what is not needed, lower checkpoint.keep, or give checkpoint.claimName a larger claim"


@contextlib.contextmanager
def full_volume_named(folder: Path, *, fix: str = _FIX) -> Iterator[None]:
    """Raise VolumeFullError, with path, size and `fix`, for any error that a full volume of `folder`
    causes."""
    try:
        yield
    except Exception as error:
        if not is_volume_full(error):
            raise
        # a full volume may have refused to make the folder itself
        usage = shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.exists()))
        raise VolumeFullError(
            f"the volume of {folder} is full, {_size(usage.free)} of {_size(usage.total)} are free: {fix}"
        ) from error


def is_volume_full(error: BaseException) -> bool:
    """Whether this error says that no space is left. safetensors says it in the text only."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    return any(f"(os error {number})" in str(error) for number in _FULL)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"
