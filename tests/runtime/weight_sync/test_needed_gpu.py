"""Backends of GPUs on a machine without one."""

from pathlib import Path

import pytest
import torch
from pod_builder import run_config, trainer_environment

from grpo_api.contract.exit_codes import exit_policy
from grpo_runtime.engines.fleet.fleet import open_fleet
from grpo_runtime.errors import UserError
from grpo_runtime.settings import read_trainer_settings
from grpo_runtime.weight_sync.needed_gpu import (
    GpuMissingError,
    find_usable_backend,
    require_found_gpu,
    require_gpu,
)
from grpo_runtime.weight_sync.registry import find_backend

GPU = {"resources": {"limits": {"nvidia.com/gpu": 1}}}


@pytest.mark.parametrize(("name", "instead"), [("nccl", "Gloo"), ("ipc", "SharedMemory")])
@pytest.mark.parametrize("role", ["trainer", "rollout"])
def test_a_backend_of_gpus_is_refused_where_there_is_none(name: str, instead: str, role: str) -> None:
    backend = find_backend(name)
    require_gpu(backend, has_gpu=True, role=role)
    with pytest.raises(UserError, match=rf"{role}\.resources\.limits .* weightSync\.backend {instead}$"):
        require_gpu(backend, has_gpu=False, role=role)


@pytest.mark.parametrize("name", ["gloo", "shared_memory", "in_process"])
def test_every_other_backend_is_there_without_a_gpu(name: str) -> None:
    require_gpu(find_backend(name), has_gpu=False, role="rollout")
    assert find_usable_backend(name).name == name


def test_a_gpu_that_is_not_found_ends_the_attempt_and_not_the_job() -> None:
    require_found_gpu(find_backend("gloo"), is_found=False)
    require_found_gpu(find_backend("nccl"), is_found=True)
    with pytest.raises(GpuMissingError, match="look at the driver") as caught:
        require_found_gpu(find_backend("nccl"), is_found=False)
    assert exit_policy(caught.value.exit_code).is_retried


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_trainer_without_a_gpu_says_so_before_it_looks_for_engines(tmp_path: Path) -> None:
    run = run_config(trainer={"processesPerNode": 1, **GPU}, rollout={"replicas": 1, **GPU})
    assert run.weight_sync_backend == "nccl"
    settings = read_trainer_settings(trainer_environment(tmp_path, run))
    with pytest.raises(UserError, match="weights by nccl need a GPU in the trainer pods, and there is none"):
        open_fleet(settings)
