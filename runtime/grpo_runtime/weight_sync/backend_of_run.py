"""The backend of a run, as its trainer uses it. One that moves memory of GPUs is refused where there is none,
before CUDA fails in its own words."""

from dataclasses import replace
from typing import Any

import torch

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.run_config import RunConfig
from grpo_runtime.engines.registry import engine_kind
from grpo_runtime.errors import KnownError, UserError
from grpo_runtime.settings import TrainerSettings
from grpo_runtime.weight_sync.interface import Backend, ModelFiles, Reach
from grpo_runtime.weight_sync.registry import find_backend

_ON_CPU = {Reach.NETWORK: "Gloo", Reach.MACHINE: "SharedMemory", Reach.PROCESS: "InProcess"}
"""The backend of the same reach that needs no GPU."""


class GpuMissingError(KnownError):
    """The image is for GPUs and there is none: the node is not well, and another attempt may get a better
    one."""

    exit_code = ExitCode.TRANSIENT


def backend_of_trainer(settings: TrainerSettings, *, model_files: ModelFiles = dict) -> Backend[Any]:
    """The backend between a trainer and engines in pods of their own. `model_files` are for one that writes
    folders which load as a model.

    Raises as `find_usable_backend` does, and KnownError as a backend does that cannot begin a run.
    """
    backend = find_usable_backend(settings.run_config)
    return backend if backend.for_run is None else backend.for_run(settings, model_files)


def find_usable_backend(run: RunConfig) -> Backend[Any]:
    """The backend of the run, in a process of the trainer.

    Raises UserError when it needs a GPU and this image is for CPU, GpuMissingError when it is for GPUs and
    there is none, and LookupError as `find_backend` does.
    """
    backend = backend_in_run(run)
    require_gpu(backend, has_gpu=not engine_kind().is_cpu_build(), role="trainer")
    require_found_gpu(backend, is_found=torch.cuda.is_available())
    return backend


def backend_in_run(run: RunConfig) -> Backend[Any]:
    """The backend of the run, which says whether it needs a GPU there. Raises LookupError as `find_backend`
    does."""
    found = find_backend(run.weight_sync_backend)
    return found if found.needs_gpu_in is None else replace(found, needs_gpu=found.needs_gpu_in(run))


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
