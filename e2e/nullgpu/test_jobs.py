"""Whole jobs on null GPUs with vLLM's CUDA build, from `grpo-runtime run` to the end of three steps.

All checks of the product are on: the probe of each sync, the tags of weights, logprobs beside those of the
trainer. See docs/null-gpu.md.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from grpo_nullgpu.jobs import NullJob, RunningJob, gpus

from grpo_api.resolve import resolve
from grpo_api.v1alpha1.job import parse_job

PRODUCT = ("crds/grpo_api", "operator/grpo_operator", "runtime/grpo_runtime")
SECONDS = 900.0
"""For a job that starts engines on two busy cores, compiles in them, and computes by the CPU."""
KV_CACHE_BYTES = 64 << 20
TOLERANCE = 0.1
"""Nats a token: engines and trainer compute in bfloat16."""
EAGER = {"engine": {"args": ["--enforce-eager"]}}
ONE_AND_ONE = {"trainer": gpus(1), "rollout": {"replicas": 1, **gpus(1)}}
JOBS = {
    # where it is not eager: with CUDA graphs and what torch compiles, as without arguments
    "disaggregated": NullJob("gsm8k-disaggregated", num_gpus=2, changes=ONE_AND_ONE),
    "disaggregated, eager": NullJob("gsm8k-disaggregated", num_gpus=2, changes={**ONE_AND_ONE, **EAGER}),
    "colocated, eager, sleep level 1": NullJob(
        "gsm8k-colocated",
        num_gpus=1,
        changes={"trainer": gpus(1), "engine": {"sleepLevel": 1, **EAGER["engine"]}},
    ),
    "lora, eager": NullJob("gsm8k-lora", num_gpus=1, changes={"trainer": gpus(1), **EAGER}),
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


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_no_job_here_leaves_a_check_out(job: NullJob) -> None:
    run = resolve(parse_job(job.document()), is_one_machine=True)
    assert run.weight_sync.verify


def test_nothing_of_the_product_knows_that_a_gpu_is_none() -> None:
    root = Path(__file__).parents[2]
    files = [path for package in PRODUCT for path in (root / package).rglob("*.py")]
    assert files
    knows = re.compile("null.?gpu", re.IGNORECASE)
    assert [path for path in files if knows.search(path.read_text())] == []


@pytest.mark.matrix
@pytest.mark.parametrize("name", JOBS)
def test_a_job_makes_its_steps_with_engines_whose_weights_are_the_trainers_after_each_sync(
    name: str, run: Callable[[NullJob], RunningJob]
) -> None:
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
    for said in job.said_by_engines("level").values():
        assert all(each["awake_bytes"] - each["asleep_bytes"] >= KV_CACHE_BYTES for each in said)
    for values in (record.values for record in records):
        assert values["sync/max_probe_error"] < TOLERANCE
        assert values["sampling/sampling_logp_difference/max"] < TOLERANCE
    # each process has a context on its own GPU, and nowhere else
    devices = list(job.machine.devices_with_contexts().values())
    assert all(len(own) == 1 for own in devices), job.machine.log()
    assert set().union(*devices) == set(range(JOBS[name].num_gpus))
