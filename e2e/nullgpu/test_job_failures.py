"""Whole jobs on null GPUs that lose memory, an engine or an attempt on their way.

Those that go on make their six steps, and their engines have the trainer's weights after each sync: see
test_jobs.py. One whose engine never fits makes none.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from grpo_nullgpu.jobs import EAGER, ONE_AND_ONE, NullJob, RunningJob, gpus

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.judge.attempts import lowered_budget

SECONDS = 1800.0
STEPS = 6
"""The first is saved, memory is taken away, and that is seen before the last one."""
DISAGGREGATED = NullJob(
    "gsm8k-disaggregated",
    num_gpus=2,
    changes={**ONE_AND_ONE, "engine": EAGER},
    may_start_again=True,
    num_steps=STEPS,
)
COLOCATED = NullJob(
    "gsm8k-colocated",
    num_gpus=1,
    changes={"trainer": gpus(1), "engine": {"sleepLevel": 1, **EAGER}},
    may_start_again=True,
    num_steps=STEPS,
)
TOO_LARGE = NullJob(
    "gsm8k-colocated",
    num_gpus=1,
    changes={"trainer": gpus(1), "engine": {"kvCacheMemory": "16Gi", **EAGER}},
)
"""On a GPU of 8 GiB."""

Run = Callable[..., RunningJob]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    running: list[RunningJob] = []

    def begin(job: NullJob, **variables: str) -> RunningJob:
        running.append(RunningJob(job, tmp_path, **variables))
        return running[-1]

    yield begin
    for job in running:
        job.stop()


@pytest.mark.matrix
def test_a_trainer_without_memory_resumes_and_an_engine_that_is_killed_in_an_update_comes_back(
    run: Run, tmp_path: Path
) -> None:
    kill = tmp_path / "kill"
    job = run(DISAGGREGATED, NULL_GPU_KILL_IN=str(kill))
    job.wait_for_step(1, seconds=SECONDS)
    step = out_of_memory(job, DISAGGREGATED)
    # in the first update of the next attempt
    kill.touch()
    job.wait_for(f"attempt 2 continues from the checkpoint of step {step}", seconds=SECONDS)
    job.wait_for("rollout-0 is started again", seconds=SECONDS)
    job.end(seconds=SECONDS)
    assert sum(map(len, job.said_by_engines("killed").values())) == 1
    assert weights_in_order(job) == job.weights_of_the_trainer()
    assert any("is killed in a collective" in line for line in job.machine.log())


@pytest.mark.matrix
def test_an_engine_that_finds_no_memory_when_it_wakes_ends_the_attempt_and_the_next_one_resumes(
    run: Run,
) -> None:
    job = run(COLOCATED)
    job.wait_for_step(1, seconds=SECONDS)
    step = out_of_memory(job, COLOCATED)
    job.wait_for(f"attempt 2 continues from the checkpoint of step {step}", seconds=SECONDS)
    job.end(seconds=SECONDS)
    assert weights_in_order(job) == job.weights_of_the_trainer()


@pytest.mark.matrix
def test_an_engine_that_is_too_large_for_its_gpu_ends_the_job_with_what_to_lower(run: Run) -> None:
    job = run(TOO_LARGE)
    assert job.ended_with(seconds=SECONDS) == ExitCode.USER_ERROR, job.said()
    assert "lower engine.kvCacheMemory, for the engine is on the same GPU" in job.screen


def out_of_memory(job: RunningJob, spec: NullJob) -> int:
    """Take all memory of the first GPU until an attempt has ended of that; returns the step that it had made.
    The next one begins with memory."""
    with job.machine.full(0):
        job.wait_for("attempt 2 follows", seconds=SECONDS)
    tokens = spec.run_config.micro_batch_tokens
    said = re.search(
        rf"a GPU is out of memory after step (\d) with {tokens} tokens at a time; an attempt that follows "
        rf"computes {lowered_budget(tokens)}; to give it more room ",
        job.screen,
    )
    assert said, job.said()
    return int(said[1])


def weights_in_order(job: RunningJob) -> list[str]:
    """Those that engines computed with, one after the other: a process has them once, and the next one
    begins with the newest."""
    said = [each["weights"] for lines in job.said_by_engines("weights").values() for each in lines]
    return [digest for index, digest in enumerate(said) if said.index(digest) == index]
