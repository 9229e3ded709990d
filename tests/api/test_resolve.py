"""A GRPOJob becomes a RunConfig with every default and every derived number written out."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from grpo_api.contract.run_config import RunConfig, parse_run_config
from grpo_api.model import ApiModel
from grpo_api.resolve import TOKENS_ON_CPU, TOKENS_ON_GPU, resolve, volumes_of
from grpo_api.source import Volume, VolumeKind
from grpo_api.v1alpha1.job import GRPOJob, parse_job
from grpo_api.v1alpha1.spec import Attention, BuiltinReward, Dtype
from grpo_api.v1alpha1.spec.trainer import TrainerSpec, TrainerStrategy

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


def job(**spec: Any) -> GRPOJob:
    base = {
        "model": {"source": "builtin://tiny"},
        "dataset": {"source": "builtin://copy"},
        "rewards": [{"name": "copy", "builtin": "char_accuracy"}],
        "algorithm": {"steps": 10},
    }
    meta = {"name": "copy", "namespace": "team", "uid": "1"}
    return parse_job(
        {"apiVersion": "grpo.dev/v1alpha1", "kind": "GRPOJob", "metadata": meta, "spec": base | spec}
    )


def test_processes_default_to_the_gpus_of_a_pod():
    resources = {"limits": {"nvidia.com/gpu": "4"}}
    assert resolve(job(trainer={"resources": resources})).topology.processes_per_node == 4
    assert resolve(job()).topology.processes_per_node == 1
    chosen = resolve(job(trainer={"processesPerNode": 2, "numNodes": 3})).topology
    assert (chosen.processes_per_node, chosen.world_size) == (2, 6)


def test_a_slice_of_a_gpu_is_a_gpu():
    def resolved(resource: str) -> RunConfig:
        pod = {"resources": {"limits": {resource: 1}}}
        return resolve(job(trainer={"numNodes": 2, **pod}, rollout=pod))

    on_slices = resolved("nvidia.com/mig-1g.10gb")
    assert on_slices == resolved("nvidia.com/gpu")
    chosen = (on_slices.topology.world_size, on_slices.model.dtype, on_slices.strategy)
    assert chosen == (2, Dtype.BFLOAT16, TrainerStrategy.FSDP2)
    # a name that only looks like one is a device like any other
    assert resolved("nvidia.com/migration") == resolved("example.com/fpga") != on_slices


def test_micro_batches_are_as_large_as_the_job_says_or_else_as_the_hardware_wants():
    gpus = {"resources": {"limits": {"nvidia.com/gpu": "4"}}}
    assert resolve(job(trainer={"microBatchTokens": 300})).micro_batch_tokens == 300
    assert resolve(job(trainer={"microBatchTokens": 300, **gpus})).micro_batch_tokens == 300
    assert resolve(job(trainer=gpus)).micro_batch_tokens == 16_384
    assert resolve(job()).micro_batch_tokens == 1024
    described = TrainerSpec.model_fields["micro_batch_tokens"].description
    assert described is not None
    assert f"Defaults to {TOKENS_ON_GPU} on GPUs and {TOKENS_ON_CPU} on CPU" in described.replace("\n", " ")


def test_slow_rewards_are_called_on_all_cpus_of_a_pod_and_quick_ones_once():
    rewards = [
        {"name": "mine", "function": "mine:score"},
        {"name": "maths", "builtin": "math_verify"},
        {"name": "copy", "builtin": "char_accuracy"},
        {"name": "named", "function": "mine:score", "workers": 3},
    ]
    named = {"limits": {"cpu": "6500m"}, "requests": {"cpu": 2}}
    for trainer, num_cpus in (
        ({"resources": named}, 6),
        ({"resources": {"requests": {"cpu": 4}}}, 4),
        ({"resources": {"limits": {"cpu": 1000}}}, 256),
    ):
        run = resolve(job(rewards=rewards, trainer=trainer))
        assert [reward.workers for reward in run.rewards] == [num_cpus, num_cpus, 1, 3]
    of_a_machine = resolve(job(rewards=rewards, trainer={"processesPerNode": 2}), threads_per_process=4)
    assert [reward.workers for reward in of_a_machine.rewards] == [8, 8, 1, 3]


@pytest.mark.parametrize(
    ("trainer", "reward", "expected"),
    [
        ({}, {}, 1),
        ({"resources": {"requests": {"cpu": 16}}}, {}, 16),
        ({"resources": {"requests": {"cpu": 16}, "limits": {"nvidia.com/gpu": 4}}}, {"workers": 3}, 5),
        ({"resources": {"requests": {"cpu": 2}, "limits": {"cpu": "6500m"}}}, {}, 6),
        ({"resources": {"requests": {"cpu": "200m"}}}, {}, 1),
        ({"resources": {"requests": {"cpu": 1}}}, {"workers": 3}, 1),
        # as many as the training processes, which wait for rewards
        ({"threadsPerProcess": 4, "processesPerNode": 2}, {}, 8),
        ({"resources": {"limits": {"cpu": 1000}}}, {}, 512),
        ({"resources": {"limits": {"cpu": 8}}}, {"threads": 3}, 3),
    ],
)
def test_a_reward_model_computes_with_the_cpus_of_its_pod_unless_a_number_is_named(
    trainer: dict[str, Any], reward: dict[str, int], expected: int
):
    model = {"source": "hf://org/judge", "threads": reward.get("threads")}
    rewards = [{"name": "judge", "model": model, "workers": reward.get("workers")}]
    (found,) = resolve(job(rewards=rewards, trainer=trainer)).rewards
    assert found.model is not None
    assert found.model.threads == expected


def test_a_reward_model_on_a_machine_computes_with_the_threads_of_its_training_processes():
    rewards = [{"name": "judge", "model": {"source": "hf://org/judge"}}]
    trainer = {"processesPerNode": 2, "resources": {"requests": {"cpu": "200m"}}}
    (found,) = resolve(job(rewards=rewards, trainer=trainer), threads_per_process=4).rewards
    assert found.model is not None
    assert found.model.threads == 8


def test_a_reward_has_one_process_where_nobody_names_cpus_and_a_service_has_16_requests_at_a_time():
    rewards = [
        {"name": "mine", "function": "mine:score"},
        {"name": "judge", "service": {"url": "http://judge/score"}},
    ]
    for trainer in ({}, {"resources": {"limits": {"cpu": "200m"}}}):
        run = resolve(job(rewards=rewards, trainer=trainer))
        assert [(reward.workers, reward.max_failing_steps) for reward in run.rewards] == [(1, 10), (16, 10)]


GPUS = {"resources": {"limits": {"nvidia.com/gpu": 2}}}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"rollout": {"replicas": 1}}, 64),
        ({"rollout": {"resources": {"limits": {"nvidia.com/gpu": 1}}}}, 1024),
        ({"rollout": {"replicas": 1}, "engine": {"maxNumSeqs": 9}}, 9),
        (
            {
                "rollout": {"replicas": 1},
                "engine": {"maxNumSeqs": 9, "dataParallelSize": 2, "expertParallel": True},
            },
            18,
        ),
    ],
)
def test_an_engine_is_given_as_many_completions_as_the_job_says_or_else_as_vllm_samples_at_a_time(
    spec: dict[str, Any], expected: int
):
    assert resolve(job(**spec)).max_samples_per_engine == expected


@pytest.mark.parametrize(
    ("trainer", "named", "expected"),
    [
        ({}, None, Dtype.FLOAT32),
        (GPUS, None, Dtype.BFLOAT16),
        ({}, "bfloat16", Dtype.BFLOAT16),
        (GPUS, "float32", Dtype.FLOAT32),
    ],
)
def test_the_precision_follows_from_the_hardware_unless_it_is_named(
    trainer: dict[str, Any], named: str | None, expected: Dtype
):
    model = {"source": "builtin://tiny", "dtype": named}
    assert resolve(job(trainer=trainer, model=model)).model.dtype is expected


@pytest.mark.parametrize(
    ("trainer", "expected"),
    [
        ({}, False),
        (GPUS, True),
        ({"gradientCheckpointing": True}, True),
        (GPUS | {"gradientCheckpointing": False}, False),
    ],
)
def test_activations_are_recomputed_where_there_are_gpus_unless_it_is_named(
    trainer: dict[str, Any], expected: bool
):
    assert resolve(job(trainer=trainer)).gradient_checkpointing is expected


@pytest.mark.parametrize(
    ("trainer", "expected"),
    [
        ({}, 1),
        ({"resources": {"requests": {"cpu": 8}}}, 1),
        ({"resources": {"limits": {"cpu": 8}}}, 8),
        ({"resources": {"limits": {"cpu": 8}}, "processesPerNode": 3, "numNodes": 2}, 2),
        ({"resources": {"limits": {"cpu": "3500m"}}}, 3),
        ({"resources": {"limits": {"cpu": "200m"}}}, 1),
        ({"resources": {"limits": {"cpu": 16, "nvidia.com/gpu": 4}}}, 4),
        # with GPUs a limit is rare, and no sum that the weights hang on is made on CPUs
        ({"resources": {"limits": {"nvidia.com/gpu": 4}, "requests": {"cpu": 16}}}, 4),
        ({"resources": {"limits": {"cpu": 16, "nvidia.com/gpu": 4}, "requests": {"cpu": 8}}}, 4),
        ({"resources": {"limits": {"nvidia.com/gpu": 4}, "requests": {"cpu": 4}}}, 1),
        ({"threadsPerProcess": 5, "resources": {"limits": {"cpu": 8}}}, 5),
        ({"threadsPerProcess": 1}, 1),
    ],
)
def test_the_cpus_of_a_pod_are_divided_by_its_processes(trainer: dict[str, Any], expected: int):
    assert resolve(job(trainer=trainer)).threads_per_process == expected


@pytest.mark.parametrize(
    ("changes", "named", "expected"),
    [
        ({"mode": "Colocated"}, None, 1),
        ({"mode": "Colocated", "trainer": GPUS}, None, 2),
        ({"mode": "Colocated", "trainer": GPUS}, 0, 0),
        ({"mode": "Colocated", "trainer": GPUS}, 1, 1),
        # it means nothing there
        ({"rollout": {"replicas": 1}, "trainer": GPUS}, None, 1),
    ],
)
def test_an_engine_that_shares_a_gpu_throws_its_weights_away_unless_another_level_is_named(
    changes: dict[str, Any], named: int | None, expected: int
):
    assert resolve(job(**changes, engine={"sleepLevel": named})).engine.sleep_level == expected


def test_attention_is_sdpa_unless_it_is_named():
    assert resolve(job()).model.attention is Attention.SDPA
    model = {"source": "builtin://tiny", "attention": "eager"}
    assert resolve(job(model=model)).model.attention is Attention.EAGER


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_a_run_config_survives_being_written_and_read(example: Path):
    (found,) = (item for item in yaml.safe_load_all(example.read_text()) if item["kind"] == "GRPOJob")
    config = resolve(parse_job(found))
    assert parse_run_config(config.model_dump_json(by_alias=True)) == config


def test_every_default_is_written_out():
    rewards = [{"name": "judge", "model": {"source": "hf://org/judge"}}]
    algorithm = {"steps": 10, "kl": {"beta": 0.1}}
    written = resolve(job(rewards=rewards, algorithm=algorithm)).to_object()

    def check(model: Any, data: Any, where: str) -> None:
        for name, field in type(model).model_fields.items():
            value = getattr(model, name)
            if value is None:
                continue
            assert field.alias in data, f"{where}.{name} is left to the reader"
            parts = data[field.alias]
            values, parts = (value, parts) if isinstance(value, tuple) else ((value,), [parts])
            for item, part in zip(values, parts, strict=True):
                if isinstance(item, ApiModel):
                    check(item, part, f"{where}.{name}")

    check(RunConfig.from_object(written), written, "run")
    assert written["algorithm"]["minibatches"] == 1
    assert written["algorithm"]["kl"] == {"beta": 0.1, "estimator": "k3", "biasCorrection": True}
    assert written["rewards"][0]["model"]["batchSize"] == 8
    assert written["report"] == {"samplesEverySteps": 10}
    assert (written["strategy"], written["weightSync"]["backend"]) == ("DDP", "InProcess")


def test_a_run_without_a_value_that_depends_on_others_is_refused():
    for path in ("microBatchTokens", "strategy", "threadsPerProcess", "isOutputLocal"):
        stored = resolve(job()).to_object()
        del stored[path]
        with pytest.raises(ValidationError, match=path):
            parse_run_config(json.dumps(stored))
    for section, name in (("model", "dtype"), ("engine", "sleepLevel"), ("weightSync", "backend")):
        stored = resolve(job()).to_object()
        del stored[section][name]
        with pytest.raises(ValidationError, match=rf"{section}\.{name}"):
            parse_run_config(json.dumps(stored))


def test_a_run_names_its_strategy():
    for named, chosen in ((None, "DDP"), ("DDP", "DDP"), ("FSDP2", "FSDP2")):
        assert resolve(job(trainer={"strategy": named})).to_object()["strategy"] == chosen


def test_several_gpus_share_the_policy_where_nobody_names_a_strategy():
    def chosen(num_gpus: int, num_nodes: int = 1, **spec: Any) -> str:
        trainer = {"numNodes": num_nodes, "resources": {"limits": {"nvidia.com/gpu": num_gpus}}}
        return resolve(job(trainer=trainer, **spec)).strategy

    assert (chosen(2), chosen(1, num_nodes=2)) == ("FSDP2", "FSDP2")
    assert chosen(1) == "DDP"
    # it is started again with all weights of the rank beside it
    assert chosen(2, engine={"process": "Own"}) == "DDP"


def test_options_of_deepspeed_reach_the_run_and_are_in_no_other():
    options = {"offloadOptimizer": True, "config": "{}"}
    config = resolve(job(trainer={"strategy": "ZeRO2", "deepspeed": options}))
    assert config.strategy == "ZeRO2"
    assert config.to_object()["deepspeed"] == options
    assert "deepspeed" not in resolve(job(trainer={"strategy": "FSDP2"})).to_object()


def test_null_counts_as_absent():
    assert job(sampling=None, image=None) == job()


def test_the_rollout_section_reaches_the_run_and_its_absence_means_no_pods():
    run = resolve(job(rollout={"replicas": 3, "lostTimeoutSeconds": 77}))
    assert (run.topology.rollout_replicas, run.rollout_lost_timeout_seconds) == (3, 77)
    assert resolve(job()).topology.rollout_replicas == 0


def test_pods_mount_the_code_of_an_agent() -> None:
    found = yaml.safe_load((EXAMPLES[0].parent / "calculator" / "agent-job.yaml").read_text())
    found["spec"]["environments"][0]["configMap"]["name"] = "code"
    run = resolve(parse_job(found | {"metadata": {"name": "calculator", "namespace": "team", "uid": "u"}}))
    assert Volume(VolumeKind.CONFIG_MAP, "code") in volumes_of(run)
    [environment] = run.environments or ()
    assert (environment.weight, environment.limits.seconds) == (1.0, 300)


def test_pods_mount_the_code_of_tools() -> None:
    code = {"name": "code", "key": "tools.py", "function": "Tools"}
    tools = [{"name": "tools", "tools": {"configMap": code}}]
    run = resolve(job(environments=tools, sampling={"toolCallParser": "hermes"}))
    assert Volume(VolumeKind.CONFIG_MAP, "code") in volumes_of(run)


def test_an_agent_without_dataset_and_rewards_gets_numbers_and_its_own_rewards() -> None:
    found = job(environments=[{"name": "game", "function": "a:b"}], dataset=None, rewards=None)
    run = resolve(found)
    assert run.dataset.source == "builtin://numbers"
    [reward] = run.rewards
    assert (reward.name, reward.builtin, reward.weight) == ("environment", BuiltinReward.ENVIRONMENT, 1.0)


def test_pods_mount_the_code_of_a_rollout_function() -> None:
    [found] = yaml.safe_load_all((EXAMPLES[0].parent / "calculator" / "job.yaml").read_text())
    found["spec"]["sampling"]["rolloutFunction"]["configMap"]["name"] = "code"
    run = resolve(parse_job(found | {"metadata": {"name": "calculator", "namespace": "team", "uid": "u"}}))
    assert volumes_of(run) == (
        Volume(VolumeKind.CONFIG_MAP, "calculator"),
        Volume(VolumeKind.CONFIG_MAP, "code"),
    )
