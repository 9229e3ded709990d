"""A GPU without memory, as torch and vLLM say it: what the trainer says, and what the next attempt does."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fake_job import STEPS, job, learned, records
from pod_builder import run_config, trainer_environment
from trainer_pod import TrainerPod

from grpo_api.contract.environment import Env
from grpo_api.contract.progress import TerminationMessage
from grpo_runtime.engines.colocated.child_messages import decode_error, encode_error
from grpo_runtime.errors import KnownError
from grpo_runtime.process.failure import describe_failure
from grpo_runtime.rollouts.interface import EngineError
from grpo_runtime.settings import read_trainer_settings
from grpo_runtime.trainer.device import fields_that_need_less, gpu_memory_errors

TORCH_SAYS = "CUDA out of memory. Tried to allocate 2.00 GiB."


def ended_by(
    folder: Path, error: Exception, *, num_steps: int, budget: str | None = None, **spec: Any
) -> TerminationMessage:
    """What a trainer writes that `error` ends after `num_steps`."""
    environment = trainer_environment(folder, run_config(**spec))
    environment[Env.ROLLOUT_REPLICAS] = "1"
    if budget:
        environment[Env.MICRO_BATCH_TOKENS] = budget
    settings = read_trainer_settings(environment)
    with pytest.raises(KnownError) as raised, gpu_memory_errors(settings, num_steps=lambda: num_steps):
        raise error
    return describe_failure(raised.value)


def test_before_the_first_step_it_ends_the_job_and_names_what_to_lower(tmp_path: Path) -> None:
    ended = ended_by(tmp_path, torch.OutOfMemoryError(TORCH_SAYS), num_steps=0)
    assert (ended.exit_code, ended.reason) == (40, "GPUOutOfMemory")
    assert ended.message == (
        "a GPU is out of memory before the first step is done: lower trainer.microBatchTokens (1024) or set "
        f"trainer.gradientCheckpointing to true; CUDA says: {TORCH_SAYS}"
    )


def test_after_a_step_it_is_retried_and_says_with_how_much(tmp_path: Path) -> None:
    ended = ended_by(tmp_path, torch.OutOfMemoryError(TORCH_SAYS), num_steps=7)
    assert (ended.exit_code, ended.reason) == (75, "GPUOutOfMemory")
    assert "after step 7 with 1024 tokens at a time; an attempt that follows computes 512" in ended.message


def test_with_a_lowered_budget_it_ends_the_job(tmp_path: Path) -> None:
    ended = ended_by(tmp_path, torch.OutOfMemoryError(TORCH_SAYS), num_steps=7, budget="512")
    assert (ended.exit_code, ended.reason) == (40, "GPUOutOfMemory")
    assert "again, although this attempt computes no more than 512 tokens" in ended.message
    assert "lower trainer.microBatchTokens (512)" in ended.message


def test_nccl_without_memory_is_found_and_not_an_engine_in_another_pod(tmp_path: Path) -> None:
    nccl = RuntimeError("NCCL error: Cuda failure 'out of memory'")
    assert ended_by(tmp_path, nccl, num_steps=7).reason == "GPUOutOfMemory"
    elsewhere = EngineError("a server says: CUDA out of memory")
    assert ended_by(tmp_path, elsewhere, num_steps=7).message == str(elsewhere)


def test_an_engine_without_memory_is_found_behind_the_error_it_led_to(tmp_path: Path) -> None:
    error = EngineError("vLLM did not start")
    error.__cause__ = RuntimeError("CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62")
    ended = ended_by(tmp_path, error, num_steps=0)
    assert "CUDA says: CUDA Error: out of memory" in ended.message


def test_an_engine_in_a_process_of_its_own_says_it_in_words(tmp_path: Path) -> None:
    told = decode_error(encode_error(torch.OutOfMemoryError(TORCH_SAYS)))
    ended = ended_by(tmp_path, told, num_steps=0, mode="Colocated")
    assert (ended.exit_code, ended.reason) == (40, "GPUOutOfMemory")


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    settings = read_trainer_settings(
        {**trainer_environment(tmp_path, run_config()), Env.ROLLOUT_REPLICAS: "1"}
    )
    with (
        pytest.raises(RuntimeError, match=r"^CUDA error: an illegal"),
        gpu_memory_errors(settings, num_steps=int),
    ):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"trainer": {"gradientCheckpointing": True}}, ["microBatchTokens"]),
        ({"trainer": {"processesPerNode": 2}}, ["microBatchTokens", "gradientCheckpointing", "strategy"]),
        ({"trainer": {"processesPerNode": 2, "strategy": "FSDP2", "gradientCheckpointing": True}},
         ["microBatchTokens"]),
        ({"mode": "Colocated"}, ["microBatchTokens", "gradientCheckpointing", "gpuMemoryUtilization"]),
        ({"mode": "Colocated", "trainer": {"processesPerNode": 2},
          "engine": {"process": "Own", "kvCacheMemory": "1Gi"}},
         ["microBatchTokens", "maxModelLen", "gradientCheckpointing", "kvCacheMemory"]),
        ({"trainer": {"microBatchTokens": 32}}, ["microBatchTokens", "maxModelLen", "gradientCheckpointing"]),
        # a sequence as long as the budget is no reason
        ({"trainer": {"microBatchTokens": 64}, "engine": {"maxModelLen": 64}},
         ["microBatchTokens", "gradientCheckpointing"]),
    ],
)  # fmt: skip
def test_only_fields_that_can_still_be_changed_are_named(spec: dict[str, Any], named: list[str]) -> None:
    sentence = fields_that_need_less(run_config(**spec))
    fields = (
        "microBatchTokens",
        "maxModelLen",
        "gradientCheckpointing",
        "strategy",
        "kvCacheMemory",
        "gpuMemoryUtilization",
    )
    assert [field for field in fields if field in sentence] == named


def small_gpu(*, from_pass: int, room: int) -> dict[str, str]:
    return {
        "FAKE_STRATEGY": "small GPU",
        "FAKE_FULL_FROM": str(from_pass),
        "FAKE_ROOM_TOKENS": str(room),
    }


@pytest.mark.processes
def test_a_rank_that_runs_out_in_the_first_step_ends_the_job_in_its_name(tmp_path: Path) -> None:
    code, message = TrainerPod(tmp_path, job(), environment=small_gpu(from_pass=1, room=20)).end()
    assert (code, message.reason, message.rank) == (40, "GPUOutOfMemory", 1)
    assert "before the first step is done: lower trainer.microBatchTokens (1024)" in message.message
    assert "set trainer.strategy to FSDP2" in message.message


@pytest.mark.processes
def test_a_rank_that_runs_out_later_goes_on_with_half_the_tokens_and_ends_the_job_the_second_time(
    tmp_path: Path, two_ranks: Path
) -> None:
    trainer = {"processesPerNode": 2, "microBatchTokens": 48}
    # a rank computes 24 tokens in each pass of steps 1 and 3, and 48 in those of steps 2 and 4
    environment = small_gpu(from_pass=5, room=30)
    code, message = TrainerPod(tmp_path, job(trainer=trainer), environment=environment).end()
    assert (code, message.reason, message.rank) == (75, "GPUOutOfMemory", 1)
    assert "after step 3 with 48 tokens at a time; an attempt that follows computes 24" in message.message
    lowered = {Env.MICRO_BATCH_TOKENS: "24"}
    smaller = small_gpu(from_pass=1, room=20)
    code, message = TrainerPod(tmp_path, job(trainer=trainer), attempt=2, environment=smaller | lowered).end()
    assert (code, message.reason) == (40, "GPUOutOfMemory")
    assert "again, although this attempt computes no more than 24 tokens" in message.message
    code, message = TrainerPod(
        tmp_path, job(trainer=trainer), attempt=3, environment=environment | lowered
    ).end()
    assert (code, message.reason) == (0, "Done")
    assert [record.step for record in records(tmp_path)] == list(range(1, STEPS + 1))
    assert records(tmp_path)[-1].values["batch/micro_batches"] == 4
    expected, found = learned(two_ranks)[-1], learned(tmp_path)[-1]
    assert found["reward"] == expected["reward"]
    assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-3)
