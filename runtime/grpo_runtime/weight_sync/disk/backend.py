"""The backend Disk: the trainer tells an engine which version to read, and each of its workers reads by
itself, from the store that the RunConfig of its pod names."""

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.run_config import RunConfig
from grpo_api.contract.volume_paths import weights_folder, weights_path
from grpo_api.v1alpha1.spec.disk import DiskSpec
from grpo_runtime.errors import KnownError, SupersededError, UserError
from grpo_runtime.export.access import S3Location, UploadCredentials
from grpo_runtime.process.background import in_thread
from grpo_runtime.settings import TrainerSettings, read_rollout_settings
from grpo_runtime.weight_sync.disk.publisher import Published, Publisher
from grpo_runtime.weight_sync.disk.store import FolderStore, StoreError, StoreRefusedError, VersionStore
from grpo_runtime.weight_sync.disk.version import MANIFEST, DamagedVersionError, StoredStream
from grpo_runtime.weight_sync.disk.version_reader import VersionReader, open_version
from grpo_runtime.weight_sync.interface import (
    Backend,
    Info,
    ModelFiles,
    Peer,
    Reach,
    SenderSettings,
    WeightSyncError,
    WrongTagError,
)
from grpo_runtime.weight_sync.receiver import StagingReceiver
from grpo_runtime.weight_sync.sender import PairwiseSender
from grpo_runtime.weight_sync.stream.host_copy import HostCopy, host_copy
from grpo_runtime.weight_sync.stream.memory import FindGpu, gpu_of_rank

FOLLOWED_FOLDER = "GRPO_FOLLOWED_FOLDER"
"""Names the folder with checked versions in the processes of `grpo-runtime follow`, which has no
RunConfig."""
_FIELD = "weightSync.disk.to"
_RETRIES = 3
"""Retries of a request to a bucket, before an engine's sync fails and is tried again as a whole."""
_BEGIN_SECONDS = 600.0
"""Time limit to look through a store and remove what was left unfinished. A store may answer each request
late."""
_LONGEST_FRACTION = 0.5
"""Largest fraction of the whole deadline, so that what is waited for here ends before it."""


def disk_backend(
    name: str,
    *,
    open_store: Callable[[], VersionStore],
    publisher: Publisher | None = None,
    rank_gpu: FindGpu = gpu_of_rank,
) -> Backend[HostCopy]:
    """Engines that read versions from a store, which `open_store` opens in a worker. `publisher` writes them
    there; without it only the end in a worker can be made."""

    def publishing() -> Publisher:
        if publisher is None:
            raise ValueError(f"{name} weight sync writes versions of a run, and got no run")
        return publisher

    def make_sender(engines: Mapping[str, Peer], settings: SenderSettings) -> PairwiseSender[HostCopy]:
        connections = {
            engine: StoreConnection(peer, settings, publisher=publishing())
            for engine, peer in engines.items()
        }
        return PairwiseSender(connections, settings)

    def for_run(settings: TrainerSettings, model_files: ModelFiles) -> Backend[HostCopy]:
        of_run = publisher_of_trainer(settings, model_files=model_files)
        return disk_backend(name, open_store=open_store, publisher=of_run, rank_gpu=rank_gpu)

    async def wait_until_ready(copy: HostCopy, stall_seconds: float) -> None:
        await publishing().wait_until_published(copy, stall_seconds=stall_seconds)

    return Backend[HostCopy](
        name=name,
        reach=Reach.NETWORK,
        prepare=lambda source: host_copy(source, rank_gpu()),
        make_sender=make_sender,
        make_receiver=lambda settings: StagingReceiver(StoreReceiver(open_store), settings),
        for_run=for_run,
        name_version=lambda copy, version: publishing().publish(copy, version),
        wait_until_ready=wait_until_ready,
        receives_while_serving=True,
    )


class StoreConnection:
    """Tells an engine which version to read; see `Connection`."""

    def __init__(self, peer: Peer, settings: SenderSettings, *, publisher: Publisher) -> None:
        self.channel = peer.channel
        self._deadlines = settings.deadlines
        self._publisher = publisher
        self._sender = secrets.token_hex(8)

    async def init(self) -> None:
        """Tell the engine whose versions it reads from now on."""
        await self.channel.init({"sender": self._sender})

    async def update(self, weights: HostCopy) -> None:
        """Let the engine read the version, once it is in the store; it answers when it has checked it."""
        with self._publisher.being_read(weights):
            await self._update(weights, await self._published(weights))

    async def finish(self, version: str) -> None:
        """Let the engine load what it has read."""
        await self.channel.finish(version)

    async def shutdown(self) -> None:
        """Nothing: the engine holds no connection, and what is being written serves others too."""

    async def _published(self, weights: HostCopy) -> Published:
        """The version, which is there unless it is written again just now: the engine is paused meanwhile."""
        patience = _LONGEST_FRACTION * self._deadlines.timeout_seconds
        try:
            async with asyncio.timeout(patience):
                return await self._publisher.wait_until_published(weights, stall_seconds=patience)
        except TimeoutError:
            # the engine did not run into a deadline, so it must not look like one that is hung
            raise WeightSyncError(f"the weights are not in the store within {patience:g} s") from None
        except SupersededError as error:
            raise WeightSyncError(str(error)) from error

    async def _update(self, weights: HostCopy, published: Published) -> None:
        stream = StoredStream(sender=self._sender, name=published.name, tag=published.tag)
        limit, start = self._deadlines.of("transfer"), time.monotonic()
        info = weights.update_info(connection=str(stream), stall_seconds=self._deadlines.stall_seconds())
        try:
            async with asyncio.timeout(limit):
                await self.channel.update(info)
        except TimeoutError as error:
            raise WeightSyncError(f"the engine has not read {published.name} within {limit:g} s") from error
        except (DamagedVersionError, WrongTagError):
            self._publisher.check_again(weights)
            raise
        self._deadlines.note("transfer", time.monotonic() - start)


class _StoreInit(BaseModel):
    """What the verb `init` carries: a text by which the sender is known again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sender: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]


class StoreReceiver:
    """The end in one worker; see `ReceiverTransport`. Where the store is it knows from its own pod, never
    from the wire."""

    def __init__(self, open_store: Callable[[], VersionStore]) -> None:
        self._open_store = open_store
        self._store: VersionStore | None = None
        self._sender = ""
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._reader: VersionReader | None = None

    def init(self, info: Info) -> None:
        """Learn of a new sender."""
        self.shutdown()
        try:
            self._sender = _StoreInit.model_validate(dict(info)).sender
        except ValidationError as error:
            raise WeightSyncError(f"disk init not understood: {error}") from error

    def missing_bytes(self, num_bytes: int) -> int:
        """How much of so much `memory` would have to be taken first."""
        return 0 if len(self._memory) == num_bytes else num_bytes

    def memory(self, num_bytes: int, *, connection: str, stall_seconds: float) -> torch.Tensor:
        """Memory of this worker, the same for every update, once the version is found."""
        stream = StoredStream.parse(connection)
        if stream.sender != self._sender:
            raise WeightSyncError("this engine has another sender than this one: it must init first")
        if self._store is None:
            self._store = self._open_store()
        manifest = open_version(self._store, stream.name)
        self._reader = VersionReader(self._store, stream.name, manifest, tag=stream.tag)
        if len(self._memory) != num_bytes:
            # first without the old one
            self._memory = torch.empty(0, dtype=torch.uint8)
            self._memory = torch.empty(num_bytes, dtype=torch.uint8)
        return self._memory

    def receive(self, buffers: Iterable[torch.Tensor], *, stall_seconds: float) -> Iterator[torch.Tensor]:
        """Fill the buffers in order."""
        assert self._reader is not None  # `memory` came before
        reader, self._reader = self._reader, None
        given: list[torch.Tensor] = []

        def targets() -> Iterator[memoryview]:
            for buffer in buffers:
                given[:] = [buffer]
                yield buffer.numpy().data

        for _ in reader.fill(targets()):
            yield given[0]

    def shutdown(self) -> None:
        """Forget the sender."""
        self._sender = ""
        self._reader = None


class StoreUnreachableError(KnownError):
    """The store of the weights does not answer, or refuses to be written. A retry helps once it does not."""

    exit_code = ExitCode.TRANSIENT


def store_of_engine() -> VersionStore:
    """The store, in any process of a rollout pod or of `grpo-runtime follow`. Raises UserError as
    `read_rollout_settings` does."""
    if FOLLOWED_FOLDER in os.environ:
        return FolderStore(Path(os.environ[FOLLOWED_FOLDER]))
    settings = read_rollout_settings(os.environ)
    return store_of(settings.run_config, volumes_dir=settings.volumes_dir)


def publisher_of_trainer(settings: TrainerSettings, *, model_files: ModelFiles) -> Publisher:
    """The publisher of an attempt, which begins here. Raises StoreUnreachableError, and SupersededError,
    UserError and VolumeFullError as `Publisher.begin_attempt` does."""
    run_config = settings.run_config
    disk = _disk_of(run_config)
    store = store_of(run_config, volumes_dir=settings.volumes_dir)
    publisher = Publisher(
        store,
        job=run_config.job,
        attempt=settings.attempt,
        keep=disk.keep,
        model_files=model_files,
    )
    try:
        in_thread(publisher.begin_attempt, name="begin-weights").result(_BEGIN_SECONDS)
    except StoreRefusedError as error:
        raise UserError(str(error)) from error
    except StoreError as error:
        raise StoreUnreachableError(str(error)) from error
    except TimeoutError as error:
        raise StoreUnreachableError(
            f"{store.what} has not been looked through within {_BEGIN_SECONDS:g} s: "
            "check endpoint and network"
        ) from error
    return publisher


def store_of(run_config: RunConfig, *, volumes_dir: Path) -> VersionStore:
    """The folder on a claim, or the prefix in a bucket. Raises UserError when the Secret lacks a key."""
    disk = _disk_of(run_config)
    if disk.is_bucket:
        credentials = UploadCredentials.of(disk.secret_volume, volumes_dir=volumes_dir)
        bucket = S3Location(disk.to).bucket
        url = f"s3://{bucket}/{weights_folder(disk, job=run_config.job)}"
        location = S3Location(url, endpoint=disk.endpoint, region=disk.region)
        return store_in_bucket(location, credentials=credentials, field=_FIELD)
    folder = weights_path(disk, job=run_config.job, volumes_dir=volumes_dir)
    return FolderStore(folder, what=f"{_FIELD} ({disk.to})")


def store_in_bucket(
    location: S3Location, *, credentials: UploadCredentials, field: str, access: str | None = None
) -> VersionStore:
    """A prefix in a bucket; `field` is what messages call it, and `access` what they ask for when access is
    refused. Raises UserError when the Secret lacks a key."""
    # the library takes a part of a second to import, and a claim needs none of it
    from grpo_runtime.export.s3 import BucketErrors, open_bucket
    from grpo_runtime.weight_sync.disk.s3_store import BucketStore

    return BucketStore(
        partial(open_bucket, location, credentials=credentials, num_retries=_RETRIES),
        errors=BucketErrors(location, credentials=credentials, field=field, access=access),
        last=MANIFEST,
    )


def _disk_of(run_config: RunConfig) -> DiskSpec:
    disk = run_config.weight_sync.disk
    if disk is None:
        raise UserError("weightSync.backend Disk needs weightSync.disk: say in weightSync.disk.to where to")
    return disk
