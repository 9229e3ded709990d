"""The backends that the contract is tested with: on the CPU, with stand-ins for what only a GPU has."""

from typing import Any

import socket_engine
import torch
from disk_in_a_folder import DISK_IN_A_FOLDER, disk_in_a_folder
from file_backend import FILE
from slow_gloo import CROWDED_GLOO, SLOW_GLOO
from stand_in_handles import StandInHandles
from stand_in_nccl import StandInDevice, StandInNccl
from weight_sources import FixedWeights

from grpo_runtime.weight_sync.gloo import gloo_backend
from grpo_runtime.weight_sync.interface import Backend, Reach
from grpo_runtime.weight_sync.ipc import ipc_backend
from grpo_runtime.weight_sync.nccl import nccl_backend
from grpo_runtime.weight_sync.registry import GLOO, all_backends, find_backend
from grpo_runtime.weight_sync.shared_memory import shared_memory_backend
from grpo_runtime.weight_sync.sparse.sender import sparse_backend
from grpo_runtime.weight_sync.vllm_native.backend import vllm_native_backend


def half_of_nccl() -> Any:
    """The trainer's half of vLLM's nccl engine."""
    from vllm.distributed.device_communicators import pynccl

    from grpo_runtime.weight_sync.vllm_native.trainer_half import find_half

    if torch.cuda.is_available():
        pynccl.current_stream = torch.cuda.current_stream  # vLLM's CPU build has none
    return find_half("nccl")


GPU_OF_TRAINER = StandInDevice()
STAND_IN_NCCL = nccl_backend(
    "stand-in-nccl", connect=StandInNccl, rank_device=lambda: GPU_OF_TRAINER, device=StandInDevice
)
STAND_IN_IPC = ipc_backend(
    "stand-in-ipc", rank_device=lambda: GPU_OF_TRAINER, device=StandInDevice, handles=StandInHandles
)
BROUGHT = vllm_native_backend(
    "engine-of-the-tests",
    engine=lambda: socket_engine.NAME,
    half=socket_engine.trainer_half,
    rank_gpu=lambda: None,
)
"""A transfer engine of vLLM. It keeps less than the contract: it ends when a transfer breaks."""
# as a fleet does before it connects
BROUGHT.prepare(FixedWeights([("weight", torch.ones(1))])).wait_until_read()
NCCL_OF_VLLM = vllm_native_backend("nccl-of-vllm", engine=lambda: "nccl", half=half_of_nccl)
"""vLLM's own, which needs GPUs."""
FROM_A_GPU: dict[str, Backend[Any]] = {
    backend.name: backend
    for backend in (
        gloo_backend("gloo-from-a-gpu", rank_gpu=lambda: GPU_OF_TRAINER),
        shared_memory_backend("shared-memory-from-a-gpu", rank_gpu=lambda: GPU_OF_TRAINER),
        disk_in_a_folder("disk-from-a-gpu", rank_gpu=lambda: GPU_OF_TRAINER),
    )
}
"""Those that send from the host, of a trainer whose weights are on a GPU."""
SPARSE = {backend.name: sparse_backend(backend, full_every=100) for backend in (GLOO, STAND_IN_NCCL)}
"""Those that send what changed, by the name of the one that they are made of."""
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
    others = (BROUGHT, NCCL_OF_VLLM, SLOW_GLOO, CROWDED_GLOO, *SPARSE.values())
    known = {**BACKENDS, **FROM_A_GPU, **{backend.name: backend for backend in others}}
    return known[name] if name in known else find_backend(name)


def device_of(backend: Backend[Any], *, place: int = 0) -> torch.device:
    """Where a worker has its model, the one with this number of all that a trainer has: on the trainer's GPU
    where they are to share it, else on one of its own."""
    if not ((backend.needs_gpu or backend is NCCL_OF_VLLM) and torch.cuda.is_available()):
        return torch.device("cpu")
    return torch.device("cuda", 0 if backend.reach is Reach.MACHINE else 1 + place)
