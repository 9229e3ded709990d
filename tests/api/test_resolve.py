"""A GRPOJob becomes a RunConfig with every default and every derived number written out."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_api.contract.run_config import RunConfig, parse_run_config
from grpo_api.resolve import resolve
from grpo_api.v1alpha1.job import GRPOJob, parse_job

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
    chosen = resolve(job(trainer={"resources": resources, "processesPerNode": 2, "numNodes": 3})).topology
    assert (chosen.processes_per_node, chosen.world_size) == (2, 6)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_a_run_config_survives_being_written_and_read(example: Path):
    (found,) = (item for item in yaml.safe_load_all(example.read_text()) if item["kind"] == "GRPOJob")
    config = resolve(parse_job(found))
    assert parse_run_config(config.model_dump_json(by_alias=True)) == config


def test_every_default_is_written_out():
    written = resolve(job()).to_object()

    def check(model: Any, data: Any, where: str) -> None:
        for name, field in type(model).model_fields.items():
            value = getattr(model, name)
            if value is None:
                continue
            assert field.alias in data, f"{where}.{name} is left to the reader"
            if hasattr(type(value), "model_fields"):
                check(value, data[field.alias], f"{where}.{name}")

    check(RunConfig.from_object(written), written, "run")


def test_a_strategy_is_written_down_only_where_an_older_image_does_not_have_it():
    for named, chosen, written in ((None, "DDP", None), ("DDP", "DDP", None), ("FSDP2", "FSDP2", "FSDP2")):
        config = resolve(job(trainer={"strategy": named}))
        assert (config.chosen_strategy, config.to_object().get("strategy")) == (chosen, written)


def test_null_counts_as_absent():
    assert job(sampling=None, image=None) == job()


def test_the_rollout_section_reaches_the_run_and_its_absence_means_no_pods():
    run = resolve(job(rollout={"replicas": 3, "lostTimeoutSeconds": 77}))
    assert (run.topology.rollout_replicas, run.rollout_lost_timeout_seconds) == (3, 77)
    assert resolve(job()).topology.rollout_replicas == 0
