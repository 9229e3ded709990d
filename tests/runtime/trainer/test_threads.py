"""How many CPU threads a training process computes with, and that the number decides the bits."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from fake_job import job
from pod_builder import run_config
from trainer_pod import TrainerPod

from grpo_runtime.torch_threads import engine_threads, pin_num_threads

POLICY = Path(__file__).with_name("threads_of_a_policy.py")
ENGINE = Path(__file__).with_name("threads_beside_an_engine.py")


def printed_by(script: Path, *arguments: str) -> str:
    """What a process prints that begins anew: how many threads torch has follows from its environment."""
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=120).stdout


def in_a_thread(count: list[int], *, num_threads: int | None = None) -> None:
    """Append the number of a new thread, which sets another first if `num_threads` is given."""

    def compute() -> None:
        if num_threads is not None:
            pin_num_threads(num_threads)
        count.append(torch.get_num_threads())

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()


def test_a_thread_keeps_its_number_whatever_others_set() -> None:
    counts: list[int] = []

    def training() -> None:
        pin_num_threads(3)
        in_a_thread(counts, num_threads=1)
        counts.append(torch.get_num_threads())
        with engine_threads(1):
            counts.append(torch.get_num_threads())
        counts.append(torch.get_num_threads())

    before = torch.get_num_threads()
    try:
        thread = threading.Thread(target=training)
        thread.start()
        thread.join()
    finally:
        pin_num_threads(before)
    assert counts == [1, 3, 1, 3]


@pytest.mark.matrix
def test_two_threads_compute_and_give_the_same_bits_each_time() -> None:
    first, second, alone = (printed_by(POLICY, number).split() for number in ("2", "2", "1"))
    assert (first[0], alone[0]) == ("2", "1")
    assert first == second


@pytest.mark.parametrize(("named", "expected"), [(2, 2), (None, 1)])
@pytest.mark.processes
def test_the_ranks_of_a_pod_have_the_threads_of_their_run_config(
    tmp_path: Path, named: int | None, expected: int
) -> None:
    algorithm = {"steps": 1, "promptsPerStep": 4, "groupSize": 4}
    trainer = {"processesPerNode": 2, "threadsPerProcess": named}
    pod = TrainerPod(
        tmp_path, job(algorithm=algorithm, trainer=trainer), environment={"OMP_NUM_THREADS": "1"}
    )
    assert pod.end()[0] == 0, pod.log()
    for rank in (0, 1):
        assert f"rank {rank} INFO grpo_runtime.trainer.rank: training on cpu, CPU threads: {expected}" in (
            pod.whole_log()
        )
    assert pod.whole_log().count("CPU threads") == 2


@pytest.mark.engine
@pytest.mark.parametrize(("named", "of_engine"), [(2, 2), pytest.param(None, 1, marks=pytest.mark.matrix)])
def test_a_colocated_engine_has_the_threads_of_the_run_config_and_the_trainer_its_own_before_and_after(
    tmp_path: Path, named: int | None, of_engine: int
) -> None:
    run = run_config(
        mode="Colocated",
        engine={"maxModelLen": 64, "kvCacheMemory": "64Mi"},
        trainer={"threadsPerProcess": named},
    )
    config = tmp_path / "run.json"
    config.write_text(run.model_dump_json(by_alias=True))
    printed = printed_by(ENGINE, str(config), str(tmp_path / "model"))
    # vLLM prints too
    assert printed.splitlines()[-1] == f"trainer 3, engine {of_engine}, trainer 3"
