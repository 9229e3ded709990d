"""A small policy that a bench makes and keeps in the cache, so that only the first run takes the time."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory


def policy_folder(name: str, *, maker: Path) -> Path:
    """Where a policy is once it is made. It has another name when the file `maker`, which makes it,
    changes."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpo-operator"
    return cache / f"{name}-{hashlib.sha256(maker.read_bytes()).hexdigest()[:12]}"


def made_policy(folder: Path, write: Callable[[Path], None]) -> Path:
    """The folder with the policy, which `write` makes if it is missing."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent) as place:
            write(Path(place) / "made")
            put_in_place(Path(place) / "made", folder)
    return folder


def put_in_place(made: Path, folder: Path) -> None:
    """Move what was made, unless another process has just moved the same there."""
    try:
        made.rename(folder)
    except OSError:
        if not folder.exists():
            raise
