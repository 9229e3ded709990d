"""The backends, by name. Which one a run uses is `RunConfig.weight_sync_backend`.

A new backend is a module with its two ends, which makes a `Backend` of them, and a row in `_BACKENDS`. One
that is not part of this package is found as well: its distribution names it as an entry point,

    [project.entry-points."grpo_runtime.weight_sync"]
    my_backend = "my_package.my_module:MY_BACKEND"

which every process reads for itself, vLLM's workers too. `register` adds a backend to this process only. The
names that a GRPOJob may ask for are in `grpo_api`.
"""

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from grpo_runtime.weight_sync.disk.backend import disk_backend, store_of_engine
from grpo_runtime.weight_sync.gloo import gloo_backend
from grpo_runtime.weight_sync.in_process import in_process_backend
from grpo_runtime.weight_sync.interface import Backend
from grpo_runtime.weight_sync.ipc import CudaHandles, ipc_backend
from grpo_runtime.weight_sync.nccl import nccl_backend
from grpo_runtime.weight_sync.shared_memory import shared_memory_backend
from grpo_runtime.weight_sync.sparse.sender import sparse_backend
from grpo_runtime.weight_sync.stream.memory import CudaDevice, device_of_rank
from grpo_runtime.weight_sync.vllm_native.backend import vllm_native_backend

ENTRY_POINTS = "grpo_runtime.weight_sync"

GLOO = gloo_backend("gloo")
NCCL = nccl_backend("nccl")
SPARSE_GLOO = sparse_backend(GLOO)
SPARSE_NCCL = sparse_backend(NCCL)
VLLM_NATIVE = vllm_native_backend("vllm_native")
DISK = disk_backend("disk", open_store=store_of_engine)
SHARED_MEMORY = shared_memory_backend("shared_memory")
IPC = ipc_backend("ipc", rank_device=device_of_rank, device=CudaDevice, handles=CudaHandles)
IN_PROCESS = in_process_backend("in_process")

_BACKENDS: dict[str, Backend[Any]] = {
    backend.name: backend
    for backend in (
        GLOO,
        NCCL,
        SPARSE_GLOO,
        SPARSE_NCCL,
        VLLM_NATIVE,
        DISK,
        SHARED_MEMORY,
        IPC,
        IN_PROCESS,
    )
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
