"""Names the volume that has no space left or cannot be used: the errors of libraries do not say where they
wrote."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from grpo_runtime.errors import KnownError, VolumeFullError, VolumeUnusableError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_FIX = "remove what is not needed, lower checkpoint.keep, or give checkpoint.claimName a larger claim"
_REFUSED = {errno.EACCES, errno.EPERM}
_BROKEN = {errno.EIO, errno.ESTALE, errno.EREMOTEIO, errno.ENODEV, errno.ENXIO}


@contextlib.contextmanager
def volume_errors_named(folder: Path, *, fix: str = _FIX) -> Iterator[None]:
    """Raise VolumeFullError, with path, size and `fix`, for any error that a full volume of `folder` causes,
    and VolumeUnusableError for one that says that it cannot be written or read."""
    try:
        yield
    except KnownError:
        raise
    except Exception as error:
        if is_volume_full(error):
            # a full volume may have refused to make the folder itself
            usage = shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.exists()))
            raise VolumeFullError(
                f"the volume of {folder} is full, {_size(usage.free)} of {_size(usage.total)} are free: {fix}"
            ) from error
        why = why_unusable(error)
        if why is None and isinstance(error, OSError) and error.errno in _REFUSED:
            why = (
                f"may not be written by user {os.getuid()} with group {os.getgid()} ({_text(error)}): give "
                "the folder in it to them"
            )
        if why is None:
            raise
        raise VolumeUnusableError(f"the volume of {folder} {why}") from error


def is_volume_full(error: BaseException) -> bool:
    """Whether this error says that no space is left. safetensors says it in the text only."""
    return _number_of(error) in _FULL


def why_unusable(error: BaseException) -> str | None:
    """What an error says that only a volume can cause, as the end of a sentence about the volume; None for
    any other."""
    number = _number_of(error)
    if number == errno.EROFS:
        return (
            "is mounted read-only: give checkpoint.claimName a claim that this pod may write, and look "
            "whether its node has remounted a damaged one"
        )
    if number in _BROKEN:
        return f"fails ({_text(error)}): look at its storage and at the mounts of its node"
    return None


def _number_of(error: BaseException) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    numbers = (*_FULL, errno.EROFS, *_BROKEN)
    return next((number for number in numbers if f"(os error {number})" in str(error)), None)


def _text(error: BaseException) -> str:
    number = _number_of(error)
    return os.strerror(number) if number else type(error).__name__


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"
