"""The revision of a running job stays the same when the operator is upgraded."""

from typing import Any

import pytest

from grpo_api.v1alpha1.job import parse_job
from grpo_operator.children.frozen_job import FrozenJob

# as the API server of 0.1.0 stored it, which filled in sleepLevel and clipHigh
SPEC: dict[str, Any] = {
    "model": {"source": "hf://Qwen/Qwen3-0.6B", "revision": "main", "dtype": "bfloat16"},
    "dataset": {"source": "pvc://data/train.jsonl", "prompt": "question", "shuffle": False},
    "rewards": [
        {"name": "right", "builtin": "math_verify", "weight": 2.0},
        {"name": "mine", "configMap": {"name": "code", "key": "reward.py", "function": "reward"}},
    ],
    "algorithm": {
        "steps": 100,
        "lossType": "grpo",
        "clipHigh": 0.2,
        "optimizer": {"learningRate": 0.00001, "schedule": "cosine", "warmupSteps": 5},
    },
    "trainer": {"numNodes": 2, "processesPerNode": 2, "resources": {"limits": {"memory": "4Gi"}}},
    "engine": {"maxModelLen": 1024, "sleepLevel": 1, "kvCacheMemory": "64Mi", "args": ["--enforce-eager"]},
    "checkpoint": {"claimName": "checkpoints", "everySteps": 10},
    "failurePolicy": {"maxRestarts": 7},
}
ROLLOUT = {"rollout": {"replicas": 3, "lostTimeoutSeconds": 60}}


@pytest.mark.parametrize(
    ("spec", "revision_of_0_1_0"), [(SPEC | ROLLOUT, "60ec0997e4"), (SPEC, "8ba95501ab")]
)
def test_the_revision_of_a_spec_is_the_one_that_release_0_1_0_computed(
    spec: dict[str, Any], revision_of_0_1_0: str
) -> None:
    metadata = {"name": "maths", "namespace": "team", "uid": "0f7c"}
    job = parse_job(
        {"apiVersion": "grpo.dev/v1alpha1", "kind": "GRPOJob", "metadata": metadata, "spec": spec}
    )
    image = "registry.example.com/runtime:0.1.0"
    run = FrozenJob.freeze(namespace="team", job="maths", uid="0f7c", spec=job.spec, image=image)
    assert run.revision == revision_of_0_1_0
