"""Backends that move memory of GPUs are refused where there is none, before CUDA fails in its own words."""

from typing import Any

import torch

from grpo_runtime.errors import UserError
from grpo_runtime.weight_sync.registry import Backend, Reach, find_backend

_ON_CPU = {Reach.NETWORK: "Gloo", Reach.MACHINE: "SharedMemory", Reach.PROCESS: "InProcess"}
"""The backend of the same reach that needs no GPU."""


def find_usable_backend(name: str) -> Backend[Any]:
    """The backend of that name, in a process of the trainer. Raises UserError when it needs a GPU and torch
    finds none, and LookupError as `find_backend` does."""
    backend = find_backend(name)
    require_gpu(backend, has_gpu=torch.cuda.is_available(), role="trainer")
    return backend


def require_gpu(backend: Backend[Any], *, has_gpu: bool, role: str) -> None:
    """Raise UserError when the backend needs a GPU and a pod of this role, as the spec calls it, has none."""
    if backend.needs_gpu and not has_gpu:
        raise UserError(
            f"weights by {backend.name} need a GPU in the {role} pods, and there is none: set nvidia.com/gpu "
            f"in {role}.resources.limits and an image that is built for GPUs, or set weightSync.backend "
            f"{_ON_CPU[backend.reach]}"
        )
