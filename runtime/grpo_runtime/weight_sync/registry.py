"""The backends, by name. Which one a run uses is `RunConfig.weight_sync_backend`.

A new backend is a module with its two ends and a row in `_BACKENDS`. One that is not part of this package is
found as well: its distribution names it as an entry point,

    [project.entry-points."grpo_runtime.weight_sync"]
    my_backend = "my_package.my_module:MY_BACKEND"

which every process reads for itself, vLLM's workers too. `register` adds a backend to this process only. The
names that a GRPOJob may ask for are in `grpo_api`.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

import torch

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.settings import TrainerSettings
from grpo_runtime.weight_sync.disk.connection import StoreConnection
from grpo_runtime.weight_sync.disk.publisher import ModelFiles, Publisher
from grpo_runtime.weight_sync.disk.receiver import StoreReceiver
from grpo_runtime.weight_sync.disk.store import VersionStore
from grpo_runtime.weight_sync.disk.store_of_run import publisher_of_trainer, store_of_engine
from grpo_runtime.weight_sync.interface import (
    Peer,
    PreparedWeights,
    Receiver,
    ReceiverSettings,
    SenderSettings,
    WeightSender,
)
from grpo_runtime.weight_sync.local.connection import LocalConnection
from grpo_runtime.weight_sync.local.cuda_handles import CudaHandles
from grpo_runtime.weight_sync.local.in_process import (
    InProcessConnection,
    InProcessReceiver,
    LentWeights,
    lend,
)
from grpo_runtime.weight_sync.local.ipc import Handles, IpcReceiver, IpcTransport
from grpo_runtime.weight_sync.local.shared_memory import (
    SharedMemoryReceiver,
    SharedMemoryTransport,
    shared_copy,
)
from grpo_runtime.weight_sync.network.gloo import GlooGroup
from grpo_runtime.weight_sync.network.group import GroupReceiver, Join
from grpo_runtime.weight_sync.network.group_sender import GroupSender
from grpo_runtime.weight_sync.network.nccl import Connect, NcclGroup, TorchNccl
from grpo_runtime.weight_sync.pairwise import PairwiseSender
from grpo_runtime.weight_sync.receiver.engine_end import end_engine
from grpo_runtime.weight_sync.receiver.staging import StagingReceiver
from grpo_runtime.weight_sync.source import WeightSource
from grpo_runtime.weight_sync.stream.device import CudaDevice, Device, device_of_rank, gpu_of_rank
from grpo_runtime.weight_sync.stream.device_packing import device_copy, host_copy
from grpo_runtime.weight_sync.stream.host_copy import HostCopy
from grpo_runtime.weight_sync.stream.manifest import manifest_of
from grpo_runtime.weight_sync.vllm_nccl.connection import TorchNcclToVllm, VllmNcclConnection
from grpo_runtime.weight_sync.vllm_nccl.receiver import VllmNcclReceiver
from grpo_runtime.weight_sync.vllm_nccl.wire import CHUNK_BYTES, require_views

ENTRY_POINTS = "grpo_runtime.weight_sync"

W = TypeVar("W", bound=PreparedWeights)
D = TypeVar("D", bound=Device)
FindGpu = Callable[[], Device | None]
"""The GPU that the trainer's weights are on, None where they are on the CPU."""


class Reach(StrEnum):
    """How far apart the two ends may be."""

    NETWORK = "network"
    MACHINE = "machine"
    PROCESS = "process"


@dataclass(frozen=True)
class Backend(Generic[W]):
    """One way for weights to travel. In vLLM's weight transfer config it is called `name_in_vllm(name)`.

    `prepare` makes of the weights what its senders take, once for all of them. `make_sender` is given the
    engines by name, `make_receiver` what a worker of an engine knows about itself.

    `is_collective` says that one transfer reaches several engines: those that are due at the same time then
    share a sender and go through a sync together. Otherwise every engine has a sender of its own and waits
    for no other. `needs_gpu` says that both ends are on one. `takes_sparse` says that its senders also take
    the SparseWeights of what `prepare` makes.

    `for_run` makes the backend of one run, where it has to know it. `name_version` is told which version the
    prepared weights are. `wait_until_ready` waits, before engines are paused, until they can be sent, for as
    long as something of it is done every so many seconds; it raises WeightSyncError, and SupersededError once
    a later attempt has begun.
    """

    name: str
    reach: Reach
    prepare: Callable[[WeightSource], W]
    make_sender: Callable[[Mapping[str, Peer], SenderSettings], WeightSender[W]]
    make_receiver: Callable[[ReceiverSettings], Receiver]
    is_collective: bool = False
    needs_gpu: bool = False
    takes_sparse: bool = False
    for_run: "Callable[[TrainerSettings, ModelFiles], Backend[W]] | None" = None
    name_version: Callable[[W, PolicyVersion], None] | None = None
    wait_until_ready: Callable[[W, float], Awaitable[None]] | None = None


def group_backend(name: str, join: Join, *, rank_gpu: FindGpu = gpu_of_rank) -> Backend[HostCopy]:
    """A backend whose engines are in one group with the trainer, by a communicator of any kind that sends
    from the host."""

    def make_receiver(settings: ReceiverSettings) -> Receiver:
        return StagingReceiver(GroupReceiver(join, worker=settings.worker), settings, keeps_stream=True)

    return Backend[HostCopy](
        name=name,
        reach=Reach.NETWORK,
        prepare=lambda source: host_copy(source, rank_gpu()),
        make_sender=partial(GroupSender, join=join),
        make_receiver=make_receiver,
        is_collective=True,
        takes_sparse=True,
    )


def _of_all_copies(rank_device: Callable[[], D]) -> Callable[[], D]:
    """The device that every copy is packed on, so with the same streams: cuBLAS, which computes tags, keeps
    32 MiB for each stream that it has met."""
    return cache(rank_device)


def gpu_group_backend(
    name: str,
    *,
    connect: Connect,
    rank_device: Callable[[], Device],
    device: Callable[[torch.device], Device],
) -> Backend[HostCopy]:
    """A backend as that of `group_backend`, of members on GPUs: `rank_device` gives the trainer's and
    `device` that of a worker. `connect` makes a member of a group of the library."""

    packing_device = _of_all_copies(rank_device)

    def make_sender(engines: Mapping[str, Peer], settings: SenderSettings) -> GroupSender:
        return GroupSender(engines, settings, join=partial(NcclGroup, connect=connect, device=rank_device()))

    def make_receiver(settings: ReceiverSettings) -> Receiver:
        found = device(settings.device)
        join = partial(NcclGroup, connect=connect, device=found)
        transport = GroupReceiver(join, worker=settings.worker, staging=found)
        return StagingReceiver(transport, settings, keeps_stream=True)

    return Backend[HostCopy](
        name=name,
        reach=Reach.NETWORK,
        prepare=lambda source: device_copy(source, packing_device()),
        make_sender=make_sender,
        make_receiver=make_receiver,
        is_collective=True,
        takes_sparse=True,
        needs_gpu=True,
    )


def ipc_backend(
    name: str,
    *,
    rank_device: Callable[[], D],
    device: Callable[[torch.device], D],
    handles: Callable[[D], Handles],
) -> Backend[HostCopy]:
    """A backend for engines on the trainer's GPU. `rank_device` gives that GPU to the trainer, `device` to a
    worker, and `handles` name memory of it."""
    packing_device = _of_all_copies(rank_device)

    def make_sender(engines: Mapping[str, Peer], settings: SenderSettings) -> PairwiseSender[HostCopy]:
        def connection(peer: Peer) -> LocalConnection:
            # each with a stream of its own, so that no engine holds up another
            found = rank_device()
            transport = IpcTransport(found, handles(found), num_workers=peer.num_workers)
            return LocalConnection(peer, settings, transport=transport)

        return PairwiseSender({name: connection(peer) for name, peer in engines.items()}, settings)

    def make_receiver(settings: ReceiverSettings) -> Receiver:
        found = device(settings.device)
        return StagingReceiver(IpcReceiver(found, handles(found), worker=settings.worker), settings)

    return Backend[HostCopy](
        name=name,
        reach=Reach.MACHINE,
        prepare=lambda source: device_copy(source, packing_device()),
        make_sender=make_sender,
        make_receiver=make_receiver,
        needs_gpu=True,
    )


def vllm_nccl_backend(
    name: str,
    *,
    connect: Connect,
    rank_device: Callable[[], Device],
    chunk_bytes: int = CHUNK_BYTES,
) -> Backend[HostCopy]:
    """A backend of vLLM's own nccl engines, each in a group with the trainer. `connect` makes the trainer's
    end of one, and `rank_device` gives its GPU."""
    packing_device = _of_all_copies(rank_device)

    def prepare(source: WeightSource) -> HostCopy:
        require_views(manifest_of(source.layout()), chunk_bytes=chunk_bytes)
        return device_copy(source, packing_device())

    def make_sender(engines: Mapping[str, Peer], settings: SenderSettings) -> PairwiseSender[HostCopy]:
        # each with a device, and so a stream, of its own: no engine holds up another
        connections = {
            name: VllmNcclConnection(
                peer, settings, connect=connect, device=rank_device(), chunk_bytes=chunk_bytes
            )
            for name, peer in engines.items()
        }
        return PairwiseSender(connections, settings)

    return Backend[HostCopy](
        name=name,
        reach=Reach.NETWORK,
        prepare=prepare,
        make_sender=make_sender,
        make_receiver=partial(VllmNcclReceiver, end_engine=end_engine),
        needs_gpu=True,
    )


def disk_backend(
    name: str,
    *,
    open_store: Callable[[], VersionStore],
    publisher: Publisher | None = None,
    rank_gpu: FindGpu = gpu_of_rank,
) -> Backend[HostCopy]:
    """A backend whose engines read versions from a store, which `open_store` opens in a worker. `publisher`
    writes them there; without it only the end in a worker can be made."""

    def publishing() -> Publisher:
        if publisher is None:
            raise ValueError(f"{name} weight sync writes versions of a run, and was not told of which one")
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
    )


def shared_memory_backend(name: str, *, rank_gpu: FindGpu = gpu_of_rank) -> Backend[HostCopy]:
    """A backend whose engines read the trainer's copy where it lies."""

    def make_sender(engines: Mapping[str, Peer], settings: SenderSettings) -> PairwiseSender[HostCopy]:
        connections = {
            name: LocalConnection(peer, settings, transport=SharedMemoryTransport())
            for name, peer in engines.items()
        }
        return PairwiseSender(connections, settings)

    return Backend[HostCopy](
        name=name,
        reach=Reach.MACHINE,
        prepare=lambda source: shared_copy(source, rank_gpu()),
        make_sender=make_sender,
        make_receiver=lambda settings: StagingReceiver(SharedMemoryReceiver(), settings),
    )


def _in_process_sender(engines: Mapping[str, Peer], settings: SenderSettings) -> PairwiseSender[LentWeights]:
    connections = {name: InProcessConnection(peer) for name, peer in engines.items()}
    return PairwiseSender(connections, settings)


GLOO = group_backend("gloo", GlooGroup)
NCCL = gpu_group_backend("nccl", connect=TorchNccl, rank_device=device_of_rank, device=CudaDevice)
VLLM_NCCL = vllm_nccl_backend("vllm_nccl", connect=TorchNcclToVllm, rank_device=device_of_rank)
IPC = ipc_backend("ipc", rank_device=device_of_rank, device=CudaDevice, handles=CudaHandles)
SHARED_MEMORY = shared_memory_backend("shared_memory")
DISK = disk_backend("disk", open_store=store_of_engine)
IN_PROCESS = Backend[LentWeights](
    name="in_process",
    reach=Reach.PROCESS,
    prepare=lend,
    make_sender=_in_process_sender,
    make_receiver=InProcessReceiver,
)

_BACKENDS: dict[str, Backend[Any]] = {
    backend.name: backend for backend in (GLOO, NCCL, VLLM_NCCL, DISK, SHARED_MEMORY, IPC, IN_PROCESS)
}


def register(backend: Backend[Any]) -> None:
    """Add a backend to this process. Raises ValueError when there is another one of its name."""
    if _BACKENDS.setdefault(backend.name, backend) is not backend:
        raise ValueError(f"there is a weight sync backend called {backend.name} already")


def find_backend(name: str) -> Backend[Any]:
    """The backend of that name. Raises LookupError, naming those that there are."""
    found = all_backends().get(name)
    if found is None:
        raise LookupError(f"no weight sync backend is called {name}; there are {', '.join(all_backends())}")
    return found


def all_backends() -> Mapping[str, Backend[Any]]:
    """Every backend there is, by name: those of this package, those registered, and those of entry points."""
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name not in _BACKENDS:
            register(entry.load())
    return dict(_BACKENDS)
