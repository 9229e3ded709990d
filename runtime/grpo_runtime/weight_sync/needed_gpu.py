"""Backends that move memory of GPUs are refused where there is none, before CUDA fails in its own words."""

from typing import Any

import torch

from grpo_api.contract.exit_codes import ExitCode
from grpo_runtime.engines.arguments import is_cpu_build
from grpo_runtime.errors import KnownError, UserError
from grpo_runtime.weight_sync.registry import Backend, Reach, find_backend

_ON_CPU = {Reach.NETWORK: "Gloo", Reach.MACHINE: "SharedMemory", Reach.PROCESS: "InProcess"}
"""The backend of the same reach that needs no GPU."""


class GpuMissingError(KnownError):
    """The image is for GPUs and there is none: the node is not well, and another attempt may get a better
    one."""

    exit_code = ExitCode.TRANSIENT


def find_usable_backend(name: str) -> Backend[Any]:
    """The backend of that name, in a process of the trainer.

    Raises UserError when it needs a GPU and this image is for CPU, GpuMissingError when it is for GPUs and
    there is none, and LookupError as `find_backend` does.
    """
    backend = find_backend(name)
    require_gpu(backend, has_gpu=not is_cpu_build(), role="trainer")
    require_found_gpu(backend, is_found=torch.cuda.is_available())
    return backend


def require_found_gpu(backend: Backend[Any], *, is_found: bool) -> None:
    """Raise GpuMissingError when the backend needs a GPU and this process finds none."""
    if backend.needs_gpu and not is_found:
        raise GpuMissingError(
            f"weights by {backend.name} need a GPU, and CUDA finds none in this trainer pod: look at the "
            "driver and the device plugin of its node"
        )


def require_gpu(backend: Backend[Any], *, has_gpu: bool, role: str) -> None:
    """Raise UserError when the backend needs a GPU and a pod of this role, as the spec calls it, has none."""
    if backend.needs_gpu and not has_gpu:
        raise UserError(
            f"weights by {backend.name} need a GPU in the {role} pods, and there is none: set nvidia.com/gpu "
            f"in {role}.resources.limits and an image that is built for GPUs, or set weightSync.backend "
            f"{_ON_CPU[backend.reach]}"
        )
