"""A second backend, as somebody outside would write it: weights in a file that all engines read.

One transfer serves all engines of a sender. Nothing but this module knows of it.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from grpo_runtime.weight_sync.interface import (
    Backend,
    Failures,
    Info,
    Peer,
    Reach,
    SenderSettings,
    WeightSyncError,
)
from grpo_runtime.weight_sync.receiver import StagingReceiver
from grpo_runtime.weight_sync.sender import Verbs, for_each_engine
from grpo_runtime.weight_sync.stream.host_copy import HostCopy


class FileSender:
    """Writes a file once and lets every engine read it."""

    num_files_written = 0

    def __init__(self, engines: Mapping[str, Peer], settings: SenderSettings) -> None:
        self._engines = engines
        self._settings = settings
        self._verbs = Verbs({name: peer.channel for name, peer in engines.items()}, settings.deadlines)
        self._folder = TemporaryDirectory(prefix="weights-")
        self._path = Path(self._folder.name, "weights")

    async def init(self, engines: Collection[str]) -> Failures:
        info = {"path": str(self._path)}
        return await self._all({name: self._engines[name].channel.init(info) for name in engines})

    async def start(self, engines: Collection[str]) -> Failures:
        return await self._verbs.start(engines)

    async def update(
        self, weights: HostCopy, *, engines: Collection[str], ends_at: float | None = None
    ) -> Failures:
        try:
            async with asyncio.timeout(self._settings.timeout_seconds):
                await asyncio.to_thread(self._write, weights)
        except TimeoutError:
            return dict.fromkeys(engines, WeightSyncError("the file is not written"))
        FileSender.num_files_written += 1
        info = weights.update_info(stall_seconds=self._settings.timeout_seconds)
        return await self._all({name: self._engines[name].channel.update(info) for name in engines})

    async def finish(self, version: str, *, engines: Collection[str]) -> Failures:
        return await self._all({name: self._engines[name].channel.finish(version) for name in engines})

    async def abort(self, engines: Collection[str]) -> Failures:
        return await self._verbs.abort(engines)

    async def shutdown(self) -> None:
        self._folder.cleanup()

    def _write(self, weights: HostCopy) -> None:
        with self._path.open("wb") as file:
            for buffer in weights.buffers():
                file.write(buffer.numpy().data)

    async def _all(self, work: Mapping[str, object]) -> Failures:
        return await for_each_engine(work, timeout_seconds=self._settings.timeout_seconds)  # type: ignore[arg-type]


class FileTransport:
    """Reads the file."""

    def __init__(self) -> None:
        self._path: Path | None = None

    def init(self, info: Info) -> None:
        self._path = Path(info["path"])

    def missing_bytes(self, num_bytes: int) -> int:
        return num_bytes

    def memory(self, num_bytes: int, *, connection: str, stall_seconds: float) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def receive(self, buffers: Iterable[torch.Tensor], *, stall_seconds: float) -> Iterator[torch.Tensor]:
        if self._path is None:
            raise WeightSyncError("no sender has said where its file is")
        with self._path.open("rb") as file:
            for buffer in buffers:
                if file.readinto(buffer.numpy().data) != len(buffer):
                    raise WeightSyncError("the file is too short")
                yield buffer

    def shutdown(self) -> None:
        self._path = None


FILE = Backend[HostCopy](
    name="file",
    reach=Reach.NETWORK,
    prepare=HostCopy,
    make_sender=FileSender,
    make_receiver=lambda settings: StagingReceiver(FileTransport(), settings),
    is_collective=True,
)
