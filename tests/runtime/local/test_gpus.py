"""Which GPUs the processes of a local job have, and what follows for the run, on machines that stand in."""

from pathlib import Path
from typing import Any

import pytest
from local_command import LocalCommand, job_object
from polling import wait_until

from grpo_api.contract.run_config import RunConfig
from grpo_api.resolve import resolve
from grpo_api.v1alpha1.job import GRPOJob, parse_job
from grpo_api.v1alpha1.spec import Dtype, WeightSyncBackend
from grpo_runtime.errors import UserError
from grpo_runtime.local.gpus import GpuShares, find_gpus, placed_on, seeing, usable

HOLD = {"steps": 3, "hold": True}
ASKS_FOR_TWO = {"trainer": {"resources": {"limits": {"nvidia.com/gpu": 2}}}, "rollout": None}


def job(**spec: Any) -> GRPOJob:
    return parse_job(job_object(**spec))


def run_of(job: GRPOJob) -> RunConfig:
    return resolve(job, is_one_machine=True)


def test_a_job_that_asks_for_no_gpus_runs_on_those_of_the_machine_as_its_pods_would() -> None:
    given = job(trainer={"processesPerNode": 2}, rollout={"replicas": 2}, engine={"tensorParallelSize": 2})
    placed = placed_on(given, tuple("012345"), was_on_gpus=None)
    run = run_of(placed)
    assert (run.model.dtype, run.gradient_checkpointing) == (Dtype.BFLOAT16, True)
    assert (run.weight_sync.backend, run.micro_batch_tokens) == (WeightSyncBackend.NCCL, 16_384)
    assert GpuShares.of(placed, tuple("012345")) == GpuShares((("0", "1"),), (("2", "3"), ("4", "5")))


def test_gpus_that_pods_would_claim_are_taken_from_the_machine() -> None:
    claims = {"podTemplate": {"spec": {"resourceClaims": [{"name": "gpus", "resourceClaimName": "gpus"}]}}}
    given = job(
        trainer={"processesPerNode": 2, **claims},
        rollout={"replicas": 2, **claims},
        engine={"tensorParallelSize": 2},
    )
    placed = placed_on(given, tuple("012345"), was_on_gpus=None)
    assert run_of(placed).weight_sync.backend is WeightSyncBackend.NCCL
    assert GpuShares.of(placed, tuple("012345")) == GpuShares((("0", "1"),), (("2", "3"), ("4", "5")))
    with pytest.raises(UserError, match="ask for 6 GPUs"):
        placed_on(given, ("0",), was_on_gpus=None)


def test_without_gpus_or_once_it_began_without_them_it_runs_on_cpu() -> None:
    for gpus, was_on_gpus in (((), None), (("0", "1"), False)):
        placed = placed_on(job(), gpus, was_on_gpus=was_on_gpus)
        assert run_of(placed).model.dtype is Dtype.FLOAT32
        assert GpuShares.of(placed, gpus) == GpuShares(trainers=((),), engines=((),))
    assert seeing(())["CUDA_VISIBLE_DEVICES"] == ""


def test_a_colocated_job_has_a_gpu_for_each_training_process_and_none_beside() -> None:
    placed = placed_on(
        job(rollout=None, trainer={"numNodes": 2, "processesPerNode": 2}), tuple("01234"), was_on_gpus=None
    )
    assert GpuShares.of(placed, tuple("01234")) == GpuShares((("0", "1"), ("2", "3")), ())
    assert run_of(placed).engine.sleep_level == 2


@pytest.mark.parametrize(
    ("spec", "gpus", "was_on_gpus", "sentence"),
    [
        ({}, ("0",), None, r"the processes of this job need 2 GPUs, .* a local run has 1 here"),
        ({}, (), True, r"the processes of this job need 2 GPUs, .* a local run has none here"),
        (ASKS_FOR_TWO, (), None, r"spec.trainer.resources ask for 2 GPUs, .* has none here"),
        (ASKS_FOR_TWO, ("7",), None, r"spec.trainer.resources ask for 2 GPUs, .* has 1 here"),
    ],
)
def test_too_few_gpus_are_refused_with_how_many_are_needed(
    spec: dict[str, Any], gpus: tuple[str, ...], was_on_gpus: bool | None, sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        placed_on(job(**spec), gpus, was_on_gpus=was_on_gpus)


@pytest.mark.parametrize(
    ("num_gpus", "named", "expected"),
    [
        (2, None, ("0", "1")),
        (4, "3, 1", ("3", "1")),
        (4, "", ()),
        (4, "1,-1,2", ("1",)),
        (2, "1,2,0", ("1",)),
        (2, "GPU-5a7c,GPU-9e10", ("GPU-5a7c", "GPU-9e10")),
        (0, "0,1", ()),
    ],
)
def test_of_the_gpus_those_are_used_that_the_shell_leaves(
    num_gpus: int, named: str | None, expected: tuple[str, ...]
) -> None:
    environment = {} if named is None else {"CUDA_VISIBLE_DEVICES": named}
    assert usable(num_gpus, environment=environment) == expected


@pytest.mark.parametrize(
    ("code", "has_cpu_build", "found"), [(0, False, ("0", "1")), (0, True, ()), (9, False, ())]
)
def test_gpus_are_those_that_nvidia_smi_lists_unless_vllm_cannot_use_them(
    code: int, has_cpu_build: bool, found: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho 'GPU 0: Stand-in'\necho 'GPU 1: Stand-in'\nexit {code}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_gpus({}, has_cpu_build=has_cpu_build) == found


def test_every_process_sees_its_own_gpus_and_the_run_stays_on_them(tmp_path: Path) -> None:
    given = job_object(rollout={"replicas": 2})
    command = LocalCommand(tmp_path, given, attempts={1: HOLD}, gpus="4 5 6")
    command.wait_for_steps(3)
    wait_until(lambda: len(command.engines()) == 2, "both engines run")
    command.interrupt()
    assert command.end() == 143
    assert "1 training process and 2 engines on 3 GPUs, weights by NCCL" in command.screen()
    assert command.trainer_gpus(1) == "4"
    assert sorted(engine["gpus"] for engine in command.engines()) == ["5", "6"]

    elsewhere = LocalCommand(tmp_path, given)
    assert elsewhere.end() == 40
    assert "need 3 GPUs" in elsewhere.screen()
    again = LocalCommand(tmp_path, given, gpus="0 1 2 3")
    assert again.end() == 0
    assert again.trainer_gpus(2) == "0"


def test_a_run_that_began_on_cpu_goes_on_there_beside_gpus(tmp_path: Path) -> None:
    command = LocalCommand(tmp_path, job_object(), attempts={1: HOLD})
    command.wait_for_steps(3)
    command.interrupt()
    assert command.end() == 143
    again = LocalCommand(tmp_path, job_object(), gpus="0 1")
    assert again.end() == 0
    assert [again.trainer_gpus(attempt) for attempt in (1, 2)] == ["", ""]
