"""The CUDA image of the runtime: built, given to the local cluster, and run in restricted pods on null GPUs.

It is removed afterwards, but for its base in buildah. What null GPUs are: docs/null-gpu.md.
"""

import shutil
from collections.abc import Iterator

import pytest

from grpo_cluster.settings import cache_dir
from grpo_demo.follow import condition
from grpo_demo.target import Target
from grpo_images.local import ensure_loaded, remove
from grpo_images.sources import RUNTIME_CUDA
from grpo_scenarios.namespace import Namespace, Object, copy_job, volume_claim
from grpo_scenarios.null_gpus import load_null_gpus, size_bytes
from grpo_scenarios.slots import set_slots

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

JOB, CLAIM = "cuda", "runs"
STEPS = 3
START_SECONDS = 300
GPU = "nvidia.com/gpu"
FREE_GB = 46
"""Of the disk: while it is loaded the image is in three places, beside what it is built from. 43.5 were
measured."""
MOST_GB = 12
TOLERANCE = 0.1
"""Nats a token: engine and trainer compute in bfloat16."""


@pytest.fixture(scope="module")
def image(target: Target) -> Iterator[str]:
    """The CUDA image in the local cluster, on null GPUs."""
    free = min(shutil.disk_usage(path).free for path in (cache_dir(), "/var/lib", "/var/tmp")) // 10**9  # noqa: S108
    if free < FREE_GB:
        pytest.skip(f"the CUDA image needs {FREE_GB} GB of the disk while it is loaded, and {free} are free")
    try:
        tag = ensure_loaded(RUNTIME_CUDA)
        name = f"{RUNTIME_CUDA.repository}-null-gpus:{tag.rpartition(':')[2]}"
        load_null_gpus(tag, name=name)
        yield name
    finally:
        remove(RUNTIME_CUDA)


@pytest.fixture
def gpus(image: str, target: Target, namespace: Namespace) -> Iterator[None]:
    """Two on the node, by the word of its status only. Afterwards no pod is there that uses the image."""
    set_slots(target, 2, resource=GPU)
    yield
    set_slots(target, None, resource=GPU)
    namespace.kubectl("delete", "grpojobs", "--all", "--wait")
    namespace.wait_until(lambda: not namespace.pods(f"grpo.dev/job={JOB}"), "no pod", timeout_seconds=60)


@pytest.mark.usefixtures("gpus")
def test_a_disaggregated_job_makes_its_steps_over_nccl_in_restricted_pods(
    image: str, namespace: Namespace
) -> None:
    size_gb = size_bytes(image) / 1e9
    print(f"the CUDA image has {size_gb:.1f} GB")
    assert size_gb < MOST_GB
    namespace.apply(volume_claim(CLAIM), a_job(image))
    # as members of one group of NCCL, each with a context on its GPU
    for role, rank in (("trainer", 0), ("rollout", 1)):
        said = namespace.wait_until(
            lambda role=role, rank=rank: (
                f"joins a group as rank {rank} of 2" in (said := said_by(namespace, role)) and said
            ),
            f"{role} is in a group of NCCL",
            timeout_seconds=START_SECONDS,
        )
        assert "device 0: context" in said
    namespace.wait_for_finish(JOB)
    assert condition(namespace.job(JOB), "Complete") == "True", namespace.describe()
    status = namespace.status(JOB)
    assert (status["weightSync"]["backend"], status["attempt"]) == ("NCCL", 1)
    records = namespace.metrics(CLAIM)
    assert [record.step for record in records] == list(range(1, STEPS + 1))
    for values in (record.values for record in records):
        assert values["sync/max_probe_error"] < TOLERANCE
        assert values["sampling/sampling_logp_difference/max"] < TOLERANCE


def said_by(namespace: Namespace, role: str) -> str:
    """The log of the one pod of a role, with what its null GPU writes; empty before it runs."""
    pods = namespace.pods_of(JOB, role)
    is_there = pods and pods[0]["status"].get("phase") == "Running"
    return namespace.kubectl("logs", pods[0]["metadata"]["name"]) if is_there else ""


def a_job(image: str) -> Object:
    limits = {"memory": "6Gi", GPU: 1}
    pods = {"resources": {"limits": limits, "requests": {"cpu": "100m", "memory": "1Gi"}}}
    job = copy_job(
        JOB,
        claim=CLAIM,
        # few, as the CPU makes them
        algorithm={"steps": STEPS, "promptsPerStep": 4, "groupSize": 4},
        # graphs and compiled code compute nothing there
        engine={"args": ["--enforce-eager"]},
        trainer={"processesPerNode": 1, **pods},
        rollout={"replicas": 1, **pods},
    )
    job["spec"]["image"] = image
    # half of what a random model writes begins so: there is something to learn in each step
    job["spec"]["rewards"].append({"name": "half", "builtin": "regex", "pattern": "^[ -Z]"})
    return job
