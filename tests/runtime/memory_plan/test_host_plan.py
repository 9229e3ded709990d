"""What is planned for the memory of a job's pods, and what is named where their limit is lower."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from planned_job import SIZES, a_job
from transformers import AutoModelForCausalLM, Qwen2Config

from grpo_api.v1alpha1.job import GRPOJob, parse_job
from grpo_runtime.memory_plan.gpu_plan import plan_memory
from grpo_runtime.memory_plan.host_plan import HostPlan, plan_hosts
from grpo_runtime.memory_plan.model_sizes import model_sizes
from grpo_runtime.memory_plan.parts import GIB

EXAMPLE = Path(__file__).parents[3] / "examples" / "gpu-70b.yaml"
P = SIZES.num_parameters


def host(job: GRPOJob, *, role: str = "trainer") -> HostPlan:
    return {plan.role: plan for plan in plan_hosts(job, SIZES)}[role]


def parts(plan: HostPlan) -> dict[str, int]:
    return {part.name: part.num_bytes for part in plan.parts}


def with_limit(memory: str, *, num_nodes: int = 2, **trainer: Any) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": 8, "memory": memory}
    return {"numNodes": num_nodes, "resources": {"limits": limits}, **trainer}


def test_the_first_pod_holds_the_whole_checkpoint_unless_every_process_writes_its_share() -> None:
    alone = parts(host(a_job(trainer={"numNodes": 2})))
    shared = parts(host(a_job(trainer={"numNodes": 2}, checkpoint={"claimName": "c", "shared": True})))
    assert alone["checkpoint, while it is written"] == 12 * P
    assert shared["checkpoint, while it is written"] == 6 * P
    assert alone["copy of the weights for engines"] == 2 * P


def test_sending_only_what_changed_takes_another_copy() -> None:
    sparse = parts(host(a_job(weightSync={"sparse": {"fullEverySteps": 10}})))
    assert sparse["the copy before it, to send only what changed"] == 2 * P


def test_of_a_model_with_an_adapter_loading_it_takes_most() -> None:
    adapter = replace(SIZES, num_adapter_parameters=1_000_000)
    model = {"source": "hf://Qwen/Qwen3-4B", "lora": {"rank": 8}}
    (plan,) = plan_hosts(a_job(model=model, rollout=None), adapter)
    assert parts(plan)["model, while rank 0 loads it"] == 2 * P
    assert "exported model, at the end" not in parts(plan)


def test_zero_loads_a_model_with_an_adapter_in_float32() -> None:
    adapter = replace(SIZES, num_adapter_parameters=1_000_000)
    job = a_job(
        model={"source": "hf://Qwen/Qwen3-4B", "lora": {"rank": 8}},
        rollout=None,
        trainer={"strategy": "ZeRO2"},
    )
    (plan,) = plan_hosts(job, adapter)
    assert parts(plan)["model, while rank 0 loads it"] == 4 * P


def test_a_reference_policy_is_copied_while_the_model_is_loaded() -> None:
    plan = host(
        a_job(
            trainer={"numNodes": 16},
            algorithm={"steps": 1, "kl": {"beta": 0.1}},
            checkpoint={"claimName": "c", "shared": True},
        )
    )
    assert parts(plan)["reference policy, while it is copied"] == 4 * P
    assert parts(plan)["model, while rank 0 loads it"] == 4 * P


def test_what_deepspeed_offloads_is_in_the_pods_of_its_processes() -> None:
    offloaded = {"strategy": "ZeRO3", "deepspeed": {"offloadOptimizer": True, "offloadParameters": True}}
    plan = host(a_job(trainer={"numNodes": 4, **offloaded}))
    assert parts(plan)["what DeepSpeed keeps on the host"] == 24 * P // 4


def test_engines_beside_their_ranks_get_a_copy_from_each_and_shared_weights_are_none() -> None:
    by_ipc: dict[str, Any] = {"engine": {"process": "Own"}, "trainer": {"strategy": "DDP"}}
    own = parts(host(a_job(rollout=None, **by_ipc)))
    assert own["copies of the weights for engines"] == 8 * 2 * P
    assert own["8 processes of their engines"] == 8 * 4 * GIB
    assert own["weights that engines keep aside"] == 8 * 2 * P
    # which is the same memory
    shared = parts(host(a_job(rollout=None, **by_ipc, weightSync={"backend": "SharedMemory"})))
    assert shared["copies of the weights for engines"] == 8 * 2 * P
    assert "weights that engines keep aside" not in shared
    within = parts(host(a_job(rollout=None)))
    beside = {
        "8 processes of their engines",
        "copies of the weights for engines",
        "weights that engines keep aside",
        "weights of engines that sleep",
    }
    assert not beside & within.keys()
    asleep = parts(host(a_job(rollout=None, engine={"sleepLevel": 1, "tensorParallelSize": 2})))
    assert asleep["weights of engines that sleep"] == 8 * 2 * P // 2


def test_engines_on_ray_are_processes_too_and_ray_takes_some_itself() -> None:
    on_ray = parts(host(a_job(rollout=None, colocated={"executor": "Ray"})))
    own = parts(host(a_job(rollout=None, engine={"process": "Own"})))
    assert on_ray == {**own, "Ray's node": GIB // 2}


def test_a_limit_that_is_too_low_is_named_with_what_suffices() -> None:
    plan = host(a_job(trainer=with_limit("80Gi")))
    needed = -(-plan.num_bytes // GIB)
    assert plan.fixes[0] == f"raise memory in trainer.resources.limits to {needed}Gi"
    assert plan.fixes[1].startswith("set checkpoint.shared to true")
    # one pod has nobody to share with
    assert len(host(a_job(trainer=with_limit("80Gi", num_nodes=1))).fixes) == 1
    assert host(a_job(trainer=with_limit(f"{needed}Gi"))).fixes == ()
    assert host(a_job()).fixes == ()


def test_a_rollout_pod_without_room_to_keep_weights_aside_still_fits() -> None:
    def rollout(memory: str) -> HostPlan:
        limits = {"nvidia.com/gpu": 1, "memory": memory}
        return host(a_job(rollout={"resources": {"limits": limits}}), role="rollout")

    assert rollout("16Gi").lacks_staging
    assert rollout("16Gi").fixes == ()
    assert not rollout("32Gi").lacks_staging
    assert rollout("8Gi").fixes == ("raise memory in rollout.resources.limits to 12Gi",)


@pytest.fixture(scope="module")
def example() -> GRPOJob:
    documents = yaml.safe_load_all(EXAMPLE.read_text())
    (found,) = (document for document in documents if document["kind"] == "GRPOJob")
    return parse_job(found)


def test_the_example_of_72_billion_parameters_fits_into_its_gpus_and_pods(example: GRPOJob) -> None:
    """The shape is that of Qwen2.5-72B's published configuration."""
    assert example.spec.model.source == "hf://Qwen/Qwen2.5-72B-Instruct"
    config = Qwen2Config(
        vocab_size=152_064,
        hidden_size=8192,
        intermediate_size=29_568,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        sizes = model_sizes(AutoModelForCausalLM.from_config(config, attn_implementation="sdpa"))
    assert sizes.num_parameters == pytest.approx(72.7e9, rel=0.001)
    gpus = {plan.role: plan for plan in plan_memory(example, sizes, gpu_bytes=80 * 10**9)}
    hosts = {plan.role: plan for plan in plan_hosts(example, sizes)}
    assert [plan.fixes for plan in (*gpus.values(), *hosts.values())] == [()] * 4
    assert not hosts["rollout"].lacks_staging
    # on half the nodes it does not, and the plan says so
    trainer = example.spec.trainer.model_copy(update={"num_nodes": 2})
    half = example.model_copy(update={"spec": example.spec.model_copy(update={"trainer": trainer})})
    (of_trainer, _) = plan_memory(half, sizes, gpu_bytes=80 * 10**9)
    assert of_trainer.fixes
