"""The backend Disk over a folder that all processes of a test share, of a run that is only here."""

import atexit
import itertools
import os
import shutil
import tempfile
import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from grpo_api.contract.run_config import JobRef
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.weight_sync.disk.backend import disk_backend
from grpo_runtime.weight_sync.disk.publisher import Publisher
from grpo_runtime.weight_sync.disk.store import FolderStore
from grpo_runtime.weight_sync.interface import Backend, Failures, Peer, SenderSettings, WeightSender
from grpo_runtime.weight_sync.stream.host_copy import HostCopy
from grpo_runtime.weight_sync.stream.memory import FindGpu, gpu_of_rank

_VARIABLE = "DISK_OF_TESTS"
JOB = JobRef(namespace="team", name="copy", uid="0b5cbf2c-uid")
_ATTEMPT = itertools.count(1)


def shared_folder() -> Path:
    """The folder of this process and of those that it starts; removed with the first of them."""
    if _VARIABLE not in os.environ:
        os.environ[_VARIABLE] = tempfile.mkdtemp(prefix="grpo-disk-")
        owner = os.getpid()
        atexit.register(lambda: os.getpid() == owner and shutil.rmtree(os.environ[_VARIABLE]))
    return Path(os.environ[_VARIABLE])


def small_files(publisher_folder: Path, *, keep: int = 2, attempt: int = 1) -> Publisher:
    """A publisher of files that a test's weights fill several of."""
    return Publisher(FolderStore(publisher_folder), job=JOB, attempt=attempt, keep=keep, file_bytes=8 * 1024)


def wait_for_writers() -> None:
    """Until what a version's thread does after it is there is done."""
    for thread in threading.enumerate():
        if thread.name == "write-weights":
            thread.join(60)


class _NamingSender:
    """Gives weights that have no version the next one, as a trainer's syncs do, and the sender them."""

    def __init__(self, sender: WeightSender[HostCopy], publisher: Publisher) -> None:
        self._sender = sender
        self._publisher = publisher
        self.init, self.start, self.finish = sender.init, sender.start, sender.finish
        self.abort, self.shutdown = sender.abort, sender.shutdown

    async def update(
        self, weights: HostCopy, *, engines: Collection[str], ends_at: float | None = None
    ) -> Failures:
        if weights not in self._publisher._publications:
            # of a process of its own, for several write to the folder
            version = PolicyVersion(os.getpid(), next(_ATTEMPT))
            self._publisher.publish(weights, version)
        return await self._sender.update(weights, engines=engines, ends_at=ends_at)


def disk_in_a_folder(name: str, *, rank_gpu: FindGpu = gpu_of_rank) -> Backend[HostCopy]:
    """The backend, for a trainer whose weights are on that GPU."""
    publisher = small_files(shared_folder(), keep=1000)
    backend = disk_backend(
        name, open_store=lambda: FolderStore(shared_folder()), publisher=publisher, rank_gpu=rank_gpu
    )

    def make_sender(engines: Mapping[str, Peer], settings: SenderSettings) -> _NamingSender:
        return _NamingSender(backend.make_sender(engines, settings), publisher)

    return replace(backend, make_sender=make_sender)


DISK_IN_A_FOLDER = disk_in_a_folder("disk")
