"""A folder that weights travel by: the backend disk of a run, and receivers as in engines that follow."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from grpo_api.contract.run_config import JobRef
from grpo_runtime.weight_sync.disk.backend import FOLLOWED_FOLDER, disk_backend
from grpo_runtime.weight_sync.disk.publisher import Publisher
from grpo_runtime.weight_sync.disk.store import FolderStore
from grpo_runtime.weight_sync.interface import Backend

_JOB = JobRef(namespace="bench", name="sync", uid="bench")


@contextmanager
def folder_of_weights() -> Iterator[Path]:
    """A temporary folder, in which receivers that are started in the block look for weights."""
    with TemporaryDirectory(prefix="grpo-weights-") as name:
        os.environ[FOLLOWED_FOLDER] = name
        try:
            yield Path(name)
        finally:
            del os.environ[FOLLOWED_FOLDER]


def backend_of_run(backend: Backend[Any], folder: Path) -> Backend[Any]:
    """The backend itself, or one that writes to the folder where it has to be told where to."""
    if backend.for_run is None:
        return backend
    store = FolderStore(folder)
    publisher = Publisher(store, job=_JOB, attempt=1, keep=2)
    return disk_backend(backend.name, open_store=lambda: store, publisher=publisher)
