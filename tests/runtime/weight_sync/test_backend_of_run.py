"""Backends of GPUs on a machine without one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pod_builder import run_config, trainer_environment
from weight_sources import FixedWeights

from grpo_api.contract.exit_codes import exit_policy
from grpo_api.contract.run_config import RunConfig
from grpo_runtime.engines.fleet.fleet import open_fleet
from grpo_runtime.errors import UserError
from grpo_runtime.settings import read_trainer_settings
from grpo_runtime.weight_sync.backend_of_run import (
    GpuMissingError,
    backend_in_run,
    backend_of_trainer,
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


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ({}, "gloo"),
        ({"weightSync": {"backend": "VllmNative", "vllmEngine": "mine"}}, "vllm_native"),
        ({"mode": "Colocated", "engine": {"process": "Own"}}, "shared_memory"),
        ({"mode": "Colocated"}, "in_process"),
    ],
)
def test_every_other_backend_is_there_without_a_gpu(spec: dict[str, Any], name: str) -> None:
    run = run_config(**spec)
    require_gpu(backend_in_run(run), has_gpu=False, role="rollout")
    assert find_usable_backend(run).name == name


def test_a_gpu_that_is_not_found_ends_the_attempt_and_not_the_job() -> None:
    require_found_gpu(find_backend("gloo"), is_found=False)
    require_found_gpu(find_backend("nccl"), is_found=True)
    with pytest.raises(GpuMissingError, match="look at the driver") as caught:
        require_found_gpu(find_backend("nccl"), is_found=False)
    assert exit_policy(caught.value.exit_code).is_retried


NCCL = pytest.mark.parametrize("name", ["nccl", "vllm_native"])
"""Of torch, and of vLLM."""


def run_between_gpus(name: str) -> RunConfig:
    backend = {"nccl": "NCCL", "vllm_native": "VllmNative"}[name]
    gpus: Any = {"trainer": {"processesPerNode": 1, **GPU}, "rollout": {"replicas": 1, **GPU}}
    run = run_config(**gpus, weightSync={"backend": backend})
    assert run.weight_sync_backend == name
    return run


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@NCCL
def test_a_trainer_without_a_gpu_says_so_before_it_looks_for_engines(name: str, tmp_path: Path) -> None:
    settings = read_trainer_settings(trainer_environment(tmp_path, run_between_gpus(name)))
    with pytest.raises(UserError, match=f"{name} need a GPU in the trainer pods, and there is none"):
        open_fleet(settings)


@NCCL
def test_a_gpu_that_the_trainer_of_a_run_does_not_find_ends_the_attempt(name: str) -> None:
    backend = backend_in_run(run_between_gpus(name))
    require_gpu(backend, has_gpu=True, role="trainer")
    with pytest.raises(GpuMissingError, match="look at the driver"):
        require_found_gpu(backend, is_found=False)


def test_a_run_that_sends_what_changed_sends_all_weights_as_often_as_it_says(tmp_path: Path) -> None:
    run = run_config(weightSync={"sparse": {"fullEverySteps": 3}})
    backend = backend_of_trainer(read_trainer_settings(trainer_environment(tmp_path, run)))
    assert backend.name == "sparse_gloo"
    is_whole = []
    for step in range(5):
        weights = torch.zeros(10_000)
        weights[step] = 1.0
        prepared = backend.prepare(FixedWeights([("weight", weights)]))
        prepared.wait_until_ready(timeout_seconds=60.0)
        is_whole.append(prepared.changes is None)
    assert is_whole == [True, False, False, True, False]
