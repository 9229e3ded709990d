"""The backends that the contract is tested with: on the CPU, with stand-ins for what only a GPU has."""

from typing import Any

import torch
from disk_in_a_folder import DISK_IN_A_FOLDER, disk_in_a_folder
from file_backend import FILE
from slow_gloo import CROWDED_GLOO, SLOW_GLOO
from stand_in_handles import StandInHandles
from stand_in_nccl import StandInDevice, StandInNccl
from stand_in_vllm_nccl import StandInNcclToVllm

from grpo_runtime.weight_sync.network.gloo import GlooGroup
from grpo_runtime.weight_sync.registry import (
    Backend,
    Reach,
    all_backends,
    find_backend,
    gpu_group_backend,
    group_backend,
    ipc_backend,
    shared_memory_backend,
    vllm_nccl_backend,
)

GPU_OF_TRAINER = StandInDevice()
STAND_IN_NCCL = gpu_group_backend(
    "stand-in-nccl", connect=StandInNccl, rank_device=lambda: GPU_OF_TRAINER, device=StandInDevice
)
STAND_IN_IPC = ipc_backend(
    "stand-in-ipc", rank_device=lambda: GPU_OF_TRAINER, device=StandInDevice, handles=StandInHandles
)
STAND_IN_VLLM_NCCL = vllm_nccl_backend(
    # in chunks in which no tensor of `some_weights` begins where its dtype cannot be read
    "stand-in-vllm-nccl",
    connect=StandInNcclToVllm,
    rank_device=lambda: GPU_OF_TRAINER,
    chunk_bytes=16,
)
"""Its engines keep less than the contract: they end when a transfer breaks."""
FROM_A_GPU: dict[str, Backend[Any]] = {
    backend.name: backend
    for backend in (
        group_backend("gloo-from-a-gpu", GlooGroup, rank_gpu=lambda: GPU_OF_TRAINER),
        shared_memory_backend("shared-memory-from-a-gpu", rank_gpu=lambda: GPU_OF_TRAINER),
        disk_in_a_folder("disk-from-a-gpu", rank_gpu=lambda: GPU_OF_TRAINER),
    )
}
"""Those that send from the host, of a trainer whose weights are on a GPU."""
OF_THE_PRODUCT: dict[str, Backend[Any]] = {
    **{
        name: backend
        for name, backend in all_backends().items()
        if not backend.needs_gpu and backend.for_run is None
    },
    DISK_IN_A_FOLDER.name: DISK_IN_A_FOLDER,
    STAND_IN_NCCL.name: STAND_IN_NCCL,
    STAND_IN_IPC.name: STAND_IN_IPC,
}
"""Its backends, those for GPUs with stand-ins for the GPU and what belongs to it, and those that belong to a
run with one."""
BACKENDS: dict[str, Backend[Any]] = {**OF_THE_PRODUCT, FILE.name: FILE}
"""And one that the product does not know."""


def backend_called(name: str) -> Backend[Any]:
    """A backend of the tests, or of the product on a GPU."""
    others = (STAND_IN_VLLM_NCCL, SLOW_GLOO, CROWDED_GLOO)
    known = {**BACKENDS, **FROM_A_GPU, **{backend.name: backend for backend in others}}
    return known[name] if name in known else find_backend(name)


def device_of(backend: Backend[Any], *, place: int = 0) -> torch.device:
    """Where a worker has its model, the one with this number of all that a trainer has: on the trainer's GPU
    where they are to share it, else on one of its own."""
    if not (backend.needs_gpu and torch.cuda.is_available()):
        return torch.device("cpu")
    return torch.device("cuda", 0 if backend.reach is Reach.MACHINE else 1 + place)
