"""What libraries compile, and load again without a check, stays in the pod or is on a claim of its own."""

import os
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_operator.children.pod import COMPILED
from grpo_operator.children.rollout import rollout_pod
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.children.trainer import trainer_pod

EVERYTHING: dict[str, Any] = {
    "model": {"source": "pvc://models/qwen"},
    "dataset": {"source": "configmap://tiny/train.jsonl"},
    "rewards": [{"name": "mine", "configMap": {"name": "code", "key": "reward.py", "function": "score"}}],
    "algorithm": {"steps": 1},
    "checkpoint": {"claimName": "runs"},
    "hub": {"cacheClaim": "hub"},
}


def pods(**engine: Any) -> list[dict[str, Any]]:
    """One of every role and mode, with every claim that a job can have beside those of `engine`."""
    colocated, disaggregated = (
        JobSnapshot.take(
            namespace="default",
            job="job",
            uid="uid-1",
            spec=GRPOJobSpec.from_object(EVERYTHING | {"engine": engine} | more),
            image="image",
        )
        for more in ({}, {"rollout": {"replicas": 1}})
    )
    trainers = [trainer_pod(run, attempt=1, index=0).body for run in (colocated, disaggregated)]
    return [*trainers, rollout_pod(disaggregated, replica=0, incarnation=0).body]


def volume_of(pod: dict[str, Any], path: str) -> dict[str, Any]:
    """The volume in which a path of the container lies."""
    [container] = pod["spec"]["containers"]
    mounts = [m for m in container["volumeMounts"] if PurePosixPath(path).is_relative_to(m["mountPath"])]
    nearest = max(mounts, key=lambda mount: len(mount["mountPath"]))
    [volume] = (v for v in pod["spec"]["volumes"] if v["name"] == nearest["name"])
    return volume


@pytest.mark.parametrize("name", sorted(COMPILED))
def test_every_pod_keeps_it_where_no_other_pod_can_write(name: str) -> None:
    for pod in pods():
        [container] = pod["spec"]["containers"]
        [path] = [entry["value"] for entry in container["env"] if entry["name"] == name]
        assert volume_of(pod, path) == {"name": "cache", "emptyDir": {}}
    with_claim = volume_of(pods()[0], "/output/model")
    assert with_claim["persistentVolumeClaim"] == {"claimName": "runs"}


@pytest.mark.parametrize("name", sorted(COMPILED))
def test_a_claim_for_it_has_a_folder_of_the_job_in_every_pod_with_an_engine(name: str) -> None:
    colocated, trainer, rollout = pods(compiledCacheClaim="compiled")
    claim = {"name": "compiled", "persistentVolumeClaim": {"claimName": "compiled"}}
    for pod in (colocated, rollout):
        [container] = pod["spec"]["containers"]
        [path] = [entry["value"] for entry in container["env"] if entry["name"] == name]
        assert volume_of(pod, path) == claim
        [mount] = [mount for mount in container["volumeMounts"] if mount["name"] == "compiled"]
        assert (
            mount["subPath"]
            == JobSnapshot.take(
                namespace="default",
                job="job",
                uid="uid-1",
                spec=GRPOJobSpec.from_object(EVERYTHING),
                image="image",
            ).names.base
        )
    assert claim not in trainer["spec"]["volumes"]


@pytest.mark.parametrize(
    ("name", "question"),
    [
        (
            "TORCHINDUCTOR_CACHE_DIR",
            "from torch._inductor.runtime.cache_dir_utils import cache_dir; print(cache_dir())",
        ),
        ("VLLM_CACHE_ROOT", "import vllm.envs; print(vllm.envs.VLLM_CACHE_ROOT)"),
    ],
)
@pytest.mark.matrix
def test_the_library_asks_the_variable(name: str, question: str, tmp_path: Path) -> None:
    """Triton and FlashInfer are in the CUDA image only."""
    folder = str(tmp_path / "here")
    environment = os.environ | {name: folder}
    said = subprocess.run(
        [sys.executable, "-c", question], env=environment, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip().splitlines()[-1] == folder
