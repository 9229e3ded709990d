"""Whole jobs on null GPUs with vLLM's CUDA build, from `grpo-runtime run` to the end of three steps.

All checks of the product are on: the probe of each sync, the tags of weights, logprobs beside those of the
trainer. See docs/null-gpu.md. Jobs that lose something on their way: test_job_failures.py.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from grpo_nullgpu.jobs import EAGER, KV_CACHE_BYTES, ONE_AND_ONE, NullJob, RunningJob, gpus

from grpo_api.v1alpha1.spec import Mode

SECONDS = 1800.0
"""For a job that starts engines on two busy cores, compiles in them, and computes by the CPU."""
TOLERANCE = 0.1
"""Nats a token: engines and trainer compute in bfloat16."""
JOBS = {
    # where it is not eager: with CUDA graphs and what torch compiles, as without arguments
    "disaggregated": NullJob("gsm8k-disaggregated", num_gpus=2, changes=ONE_AND_ONE, has_read_only_root=True),
    "colocated": NullJob("gsm8k-colocated", num_gpus=1, changes={"trainer": gpus(1)}),
    "colocated, eager, tensor parallel": NullJob(
        "gsm8k-colocated",
        num_gpus=2,
        changes={"trainer": gpus(2), "engine": {"tensorParallelSize": 2, **EAGER}},
    ),
    "lora, eager": NullJob("gsm8k-lora", num_gpus=1, changes={"trainer": gpus(1), "engine": EAGER}),
    "ray, eager": NullJob(
        "gsm8k-ray", num_gpus=1, changes={"trainer": {"numNodes": 1, **gpus(1)}, "engine": EAGER}
    ),
    "70b, eager": NullJob(
        "gpu-70b",
        num_gpus=4,
        # two ranks, the server of the engine, its core and two workers
        most_processes_with_torch=6,
        changes={
            "trainer": {"numNodes": 2, "podTemplate": None, **gpus(1)},
            "rollout": {"replicas": 1, "nodesPerReplica": None, "podTemplate": None, **gpus(2)},
            "engine": {"tensorParallelSize": 2, **EAGER},
            "hub": None,
            # of which the first step has completions with and without a vowel
            "algorithm": {"seed": 1},
        },
    ),
}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[[NullJob], RunningJob]]:
    running: list[RunningJob] = []

    def begin(job: NullJob) -> RunningJob:
        running.append(RunningJob(job, tmp_path))
        return running[-1]

    yield begin
    for job in running:
        job.stop()


@pytest.mark.matrix
@pytest.mark.parametrize("name", JOBS)
def test_a_job_makes_its_steps_with_engines_whose_weights_are_the_trainers_after_each_sync(
    name: str, run: Callable[[NullJob], RunningJob]
) -> None:
    if JOBS[name].has_read_only_root and os.geteuid() != 0:
        pytest.skip("its read-only root is a mount, which only root can make")
    job = run(JOBS[name])
    records = job.end(seconds=SECONDS)
    of_trainer = job.weights_of_the_trainer()
    assert len(set(of_trainer)) == len(of_trainer), "a step changed nothing"
    of_engines = job.said_by_engines("weights")
    assert of_engines
    for said in of_engines.values():
        assert [each["weights"] for each in said] == of_trainer
        # graphs that were captured read them where they were then
        assert len({each["addresses"] for each in said}) == 1
    for values in (record.values for record in records):
        assert values["sync/max_probe_error"] < TOLERANCE
        assert values["sampling/sampling_logp_difference/max"] < TOLERANCE
    require_memory_to_be_let_go(job, num_workers=job.run_config.engine.num_workers)
    # each process has a context on its own GPU, and nowhere else
    devices = list(job.machine.devices_with_contexts().values())
    assert all(len(own) == 1 for own in devices), job.machine.log()
    assert set().union(*devices) == set(range(JOBS[name].num_gpus))
    assert 0 < job.most_processes_with_torch <= JOBS[name].most_processes_with_torch
    if job.run_config.mode is Mode.COLOCATED and job.run_config.engine.num_workers > 1:
        # NCCL of torch and of vLLM in one process
        num_groups = job.machine.num_groups_joined().values()
        assert num_groups and all(number >= 2 for number in num_groups)
    if JOBS[name].has_read_only_root:
        compiled = job.machine.folder / "cache/compiled"
        assert {path.name for path in compiled.iterdir()} == {"vllm", "inductor", "triton", "flashinfer"}
        assert all(any((compiled / name).rglob("*.*")) for name in ("vllm", "triton"))


def require_memory_to_be_let_go(job: RunningJob, *, num_workers: int) -> None:
    """A sleep frees weights and KV cache. They are taken again in this order, the latter once the new weights
    are there, and the allocator of the engine's process holds no unused memory when the engine wakes."""
    if job.run_config.mode is Mode.COLOCATED:
        assert job.said_by_engines("level") and job.said_by_engines("woken")
    kv_cache = KV_CACHE_BYTES // num_workers
    for said in job.said_by_engines("level").values():
        assert all(each["awake_bytes"] - each["asleep_bytes"] > kv_cache for each in said)
    for said in job.said_by_engines("woken").values():
        assert [each["woken"] for each in said] == [["weights"], ["kv_cache"]] * (len(said) // 2)
        taken = [each["after_bytes"] - each["before_bytes"] for each in said]
        assert all(num_bytes > 0 for num_bytes in taken[::2]) and set(taken[1::2]) == {kv_cache}
        assert [each["kept_bytes"] for each in said] == [0] * len(said)
