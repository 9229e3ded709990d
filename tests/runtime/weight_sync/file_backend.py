"""A second backend, as somebody outside would write it: weights in a file that all engines read.

One transfer serves all engines of a sender. Nothing but this module knows of it.
"""

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from grpo_runtime.weight_sync.interface import Failures, Info, Peer, SenderSettings, WeightSyncError
from grpo_runtime.weight_sync.packing import PackedWeights, WeightManifest, as_memory, pack
from grpo_runtime.weight_sync.pairwise import for_each_engine, give_up_update, open_update
from grpo_runtime.weight_sync.registry import Backend, Reach
from grpo_runtime.weight_sync.staging import Digest, StagingReceiver


class FileSender:
    """Writes a file once and lets every engine read it."""

    num_files_written = 0

    def __init__(self, engines: Mapping[str, Peer], settings: SenderSettings) -> None:
        self._engines = engines
        self._settings = settings
        self._folder = TemporaryDirectory(prefix="weights-")
        self._path = Path(self._folder.name, "weights")

    async def init(self, engines: Collection[str]) -> Failures:
        info = {"path": str(self._path)}
        return await self._all({name: self._engines[name].channel.init(info) for name in engines})

    async def start(self, engines: Collection[str]) -> Failures:
        return await self._all({name: open_update(self._engines[name].channel) for name in engines})

    async def update(self, weights: PackedWeights, *, engines: Collection[str]) -> Failures:
        try:
            async with asyncio.timeout(self._settings.timeout_seconds):
                await asyncio.to_thread(self._write, weights)
        except TimeoutError:
            return dict.fromkeys(engines, WeightSyncError("the file is not written"))
        FileSender.num_files_written += 1
        info = {"manifest": weights.manifest.model_dump(mode="json")}
        return await self._all({name: self._engines[name].channel.update(info) for name in engines})

    async def finish(self, version: str, *, engines: Collection[str]) -> Failures:
        return await self._all({name: self._engines[name].channel.finish(version) for name in engines})

    async def abort(self, engines: Collection[str]) -> Failures:
        return await self._all({name: give_up_update(self._engines[name].channel) for name in engines})

    async def shutdown(self) -> None:
        self._folder.cleanup()

    def _write(self, weights: PackedWeights) -> None:
        with self._path.open("wb") as file:
            for buffer in weights.buffers:
                file.write(as_memory(buffer))

    async def _all(self, work: Mapping[str, object]) -> Failures:
        return await for_each_engine(work, timeout_seconds=self._settings.timeout_seconds)  # type: ignore[arg-type]


class FileTransport:
    """Reads the file."""

    def __init__(self) -> None:
        self._path: Path | None = None

    def init(self, info: Info) -> None:
        self._path = Path(info["path"])

    def receive(self, flat: torch.Tensor, *, manifest: WeightManifest, digest: Digest) -> None:
        if self._path is None:
            raise WeightSyncError("no sender has said where its file is")
        data = bytearray(self._path.read_bytes())
        if len(data) != len(flat):
            raise WeightSyncError(f"the file has {len(data)} bytes, not {len(flat)}")
        flat.copy_(torch.frombuffer(data, dtype=torch.uint8))
        digest.update(as_memory(flat))

    def shutdown(self) -> None:
        self._path = None


FILE = Backend[PackedWeights](
    name="file",
    reach=Reach.NETWORK,
    prepare=pack,
    make_sender=FileSender,
    make_receiver=lambda settings: StagingReceiver(FileTransport(), settings),
    is_collective=True,
)
