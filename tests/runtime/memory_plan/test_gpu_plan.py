"""What is planned for a job, and what is named where it does not fit."""

from typing import Any

import pytest
from planned_job import SIZES, a_job

from grpo_api.v1alpha1.job import GRPOJob
from grpo_runtime.memory_plan.gpu_plan import GpuPlan, plan_memory
from grpo_runtime.memory_plan.parts import GIB


def plans(job: GRPOJob, *, gpu_gib: float | None = 80) -> dict[str, GpuPlan]:
    found = plan_memory(job, SIZES, gpu_bytes=None if gpu_gib is None else int(gpu_gib * GIB))
    return {plan.role: plan for plan in found}


def parts(plan: GpuPlan) -> dict[str, float]:
    return {part.name: part.num_bytes / GIB for part in plan.parts}


def test_ddp_has_the_whole_policy_on_every_gpu_and_fsdp2_its_share() -> None:
    whole = parts(plans(a_job(trainer={"strategy": "DDP"}))["trainer"])
    shared = parts(plans(a_job(trainer={"strategy": "FSDP2"}))["trainer"])
    billions = SIZES.num_parameters / GIB
    assert whole["weights"] == whole["buckets of gradients"] == pytest.approx(4 * billions)
    assert "gradients" not in whole
    assert whole["optimizer"] == pytest.approx(8 * billions)
    assert shared["weights"] == pytest.approx(4 * billions / 8)
    assert shared["weights put together"] < 4


def test_zero_shares_more_with_each_stage_and_leaves_to_the_cpu_what_it_is_told_to() -> None:
    billions = SIZES.num_parameters / GIB
    for stage, weights, gradients in ((1, 4, 4), (2, 4, 0.5), (3, 0.5, 0.5)):
        found = parts(plans(a_job(trainer={"strategy": f"ZeRO{stage}"}))["trainer"])
        assert found["weights"] == pytest.approx(weights * billions)
        assert found["gradients"] == pytest.approx(gradients * billions)
        # two moments and the master weights
        assert found["optimizer"] == pytest.approx(12 * billions / 8)
    on_cpu = {"offloadOptimizer": True, "offloadParameters": True}
    found = parts(plans(a_job(trainer={"strategy": "ZeRO3", "deepspeed": on_cpu}))["trainer"])
    assert not {"weights", "optimizer"} & found.keys()


def test_a_job_that_does_not_fit_is_told_what_suffices() -> None:
    tight = plans(a_job(trainer={"strategy": "DDP"}), gpu_gib=64)["trainer"]
    assert tight.num_bytes > 64 * GIB
    assert [fix.partition(" (")[0] for fix in tight.fixes] == ["set trainer.strategy to FSDP2"]
    # what a job that names no strategy has on several GPUs
    assert plans(a_job(), gpu_gib=64)["trainer"].fixes == ()


def test_one_gpu_has_nobody_to_share_with() -> None:
    (*_, last) = plans(a_job(num_gpus=1), gpu_gib=64)["trainer"].fixes
    assert "more GPUs (trainer.resources or trainer.numNodes) with trainer.strategy FSDP2" in last


def test_activations_that_do_not_fit_are_recomputed_or_fewer() -> None:
    wide = {"strategy": "FSDP2", "gradientCheckpointing": False}
    fixes = plans(a_job(trainer=wide))["trainer"].fixes
    assert fixes[0].startswith("set trainer.gradientCheckpointing to true (")
    assert fixes[1].startswith("set trainer.microBatchTokens to engine.maxModelLen (4096) (")


def test_changes_that_suffice_only_together_are_named_together() -> None:
    wide = {"strategy": "DDP", "gradientCheckpointing": False}
    (fix,) = plans(a_job(trainer=wide), gpu_gib=40)["trainer"].fixes
    assert fix.startswith(
        "set trainer.gradientCheckpointing to true, and set trainer.strategy to FSDP2, and set "
        "trainer.microBatchTokens to engine.maxModelLen (4096) ("
    )


def test_without_the_size_of_a_gpu_nothing_is_too_large() -> None:
    assert plans(a_job(), gpu_gib=None)["trainer"].fixes == ()


def test_an_engine_needs_its_weights_and_its_cache() -> None:
    rollout = plans(a_job(engine={"kvCacheMemory": "20Gi"}))["rollout"]
    assert parts(rollout)["engine's weights"] == pytest.approx(2 * SIZES.num_parameters / GIB)
    assert parts(rollout)["KV cache"] == 20
    # 36 layers x 2 (keys and values) x 1024 x 2 bytes x 4096 tokens
    assert (
        parts(plans(a_job())["rollout"])["KV cache of one sequence, at least"]
        == 36 * 2 * 1024 * 2 * 4096 / GIB
    )
    fixes = plans(a_job(engine={"kvCacheMemory": "20Gi"}), gpu_gib=24)["rollout"].fixes
    assert fixes[0].startswith("raise engine.tensorParallelSize")
    assert "lower engine.kvCacheMemory" in fixes


def test_a_colocated_engine_that_sleeps_does_not_count_in_training() -> None:
    sharded = {"strategy": "FSDP2"}
    asleep = plans(a_job(rollout=None, trainer=sharded))["trainer"]
    awake = plans(a_job(rollout=None, trainer=sharded, engine={"sleepLevel": 0}))["trainer"]
    assert "engine's weights" not in parts(asleep)
    assert awake.num_bytes - asleep.num_bytes > 2 * SIZES.num_parameters


def test_a_colocated_engine_may_be_what_takes_most() -> None:
    found = plans(a_job(rollout=None, trainer={"strategy": "FSDP2"}, engine={"kvCacheMemory": "60Gi"}))
    assert parts(found["trainer"])["KV cache"] == 60
    assert parts(found["trainer"])["trainer at rest"] == pytest.approx(12 * SIZES.num_parameters / 8 / GIB)


def test_only_roles_with_gpus_are_planned() -> None:
    assert set(plans(a_job(rollout={"replicas": 1}))) == {"trainer"}


def test_a_reference_policy_has_the_precision_of_the_run_and_one_that_follows_is_float32() -> None:
    def reference(**kl: Any) -> float:
        algorithm = {"steps": 1, "kl": {"beta": 0.1, **kl}}
        return parts(plans(a_job(trainer={"strategy": "DDP"}, algorithm=algorithm))["trainer"])[
            "reference policy"
        ]

    billions = SIZES.num_parameters / GIB
    assert reference() == pytest.approx(2 * billions)
    assert reference(refSync={"everySteps": 10}) == pytest.approx(4 * billions)
