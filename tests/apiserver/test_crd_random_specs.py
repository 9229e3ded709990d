"""Rules written twice agree: many random jobs are judged alike by the models and a real API server."""

import copy
import random
from typing import Any

import pytest

from grpo_api.problems import problems

from ..api.bad_specs import BASE
from .api_server import Jobs

pytestmark = pytest.mark.apiserver
NUM_JOBS = 600

QUANTITIES = [
    0, 1, 2, 4, 8, "1", "2", "2.", ".5", "500m", "1000m", "1500m", "100n", "1u", "2k", "1Ki", "1Mi", "64Mi",
    "1Gi", "1024Mi", "1025Mi", "4Gi", "1E", "1Ei", "1e9", "1e-3", "9e99", "0.0000000001", "1048575",
    "1048576", "1048576.5", "9223372036854775808", "8GB", "1,5", "-1", "1e100",
]  # fmt: skip
RESOURCES = [
    "cpu", "cpu", "memory", "memory", "ephemeral-storage", "nvidia.com/gpu", "nvidia.com/gpu", "a.b/c_d-e.f",
    "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb",
    "x.y/" + "z" * 63, "x.y/" + "z" * 64, "gpu", "/b", "A.b/c",
]  # fmt: skip
CODE = {"configMap": {"name": "code", "key": "code.py", "function": "score"}}
SOURCES = [
    *[{"builtin": "exact_match"}, {"function": "a:b"}, CODE, {"builtin": "regex", "pattern": "a"}] * 3,
    *[{"builtin": "length", "overlongTokens": 8}] * 2, {"builtin": "regex"}, {"function": "a:b", **CODE}, {},
]  # fmt: skip
ARGUMENTS = [
    "--max-num-seqs=8",
    "--enable-prefix-caching",
    "--port=1",
    "--mod",
    "--no-enable-sleep-mode",
    "--m",
]


def random_resources(dice: random.Random) -> dict[str, Any]:
    def amounts() -> dict[str, Any]:
        return {dice.choice(RESOURCES): dice.choice(QUANTITIES) for _ in range(dice.choice([0, 0, 1, 2]))}

    return {name: amounts() for name in ("limits", "requests") if dice.random() < 0.5}


def random_rollout(dice: random.Random) -> dict[str, Any]:
    nodes = {"nodesPerReplica": dice.choice([1, 2, 2, 3])} if dice.random() < 0.2 else {}
    return nodes | {"resources": random_resources(dice)}


def random_job(dice: random.Random) -> dict[str, Any]:
    """About one in ten is valid; the others break one rule or several."""
    job = copy.deepcopy(BASE)
    job["metadata"]["name"] = dice.choice([*["a-1", "a" * 63] * 4, "a" * 64, "a.b"])
    trainer: dict[str, Any] = {"resources": random_resources(dice), "numNodes": dice.choice([1, 1, 2, 32])}
    if dice.random() < 0.3:
        trainer["processesPerNode"] = dice.choice([1, 2, 3])
    engine: dict[str, Any] = {"maxModelLen": dice.choice([64, 4096])}
    if dice.random() < 0.3:
        engine["tensorParallelSize"] = dice.choice([1, 1, 2, 2, 9])
    if dice.random() < 0.2:
        engine["pipelineParallelSize"] = dice.choice([1, 1, 2])
    if dice.random() < 0.2:
        engine["dataParallelSize"] = dice.choice([1, 2])
    if dice.random() < 0.3:
        engine["expertParallel"] = dice.choice([True, True, False])
    if dice.random() < 0.2:
        engine["args"] = dice.sample(ARGUMENTS, 1)
    mode = dice.choice(["Auto", "Auto", "Colocated", "Disaggregated"])
    has_rollout = dice.random() < {"Auto": 0.5, "Colocated": 0.1, "Disaggregated": 0.9}[mode]
    if dice.random() < 0.3:
        engine["kvCacheMemory"] = dice.choice(QUANTITIES)
    job["spec"] |= {
        "trainer": trainer,
        "engine": engine,
        "mode": mode,
        **({"rollout": random_rollout(dice)} if has_rollout else {}),
        "sampling": {"maxTokens": dice.choice([1, 8, 63, 63, 64])},
        "algorithm": {
            "steps": dice.choice([1, 10]),
            "promptsPerStep": dice.choice([1, 16]),
            "groupSize": 2,
            "optimizer": {"warmupSteps": dice.choice([0, 1, 1, 1, 5])},
        },
        "rewards": [
            {
                "name": dice.choice("abc"),
                "weight": dice.choice([0, -0.0, 1, 1, 0.5, -1.5]),
                **dice.choice(SOURCES),
            }
            for _ in range(dice.choice([1, 1, 2]))
        ],
    }
    return job


def test_random_jobs_are_judged_alike_by_the_models_and_the_api_server(jobs: Jobs):
    dice = random.Random(4)
    num_valid = 0
    for _ in range(NUM_JOBS):
        job = random_job(dice)
        found, refusal = problems(job), jobs.try_create(job)
        num_valid += refusal is None
        assert bool(found) == (refusal is not None), (job, found, refusal)
        if refusal is not None:
            # the API server goes on to outer objects after an inner one broke a rule
            assert {(problem.field, problem.message) for problem in found} <= refusal.causes, job
    assert NUM_JOBS / 20 < num_valid < NUM_JOBS / 2, "the dice no longer try both sides"
