"""Mode Colocated with each engine in a process of its own: it computes the same, and its rank outlives it.

How a wrong argument of such an engine is named: tests/runtime/engines/colocated/test_recovering_engine.py."""

import os
import signal
from pathlib import Path

import pytest
from local_job import start_trainer
from pod_builder import run_config
from polling import wait_until
from trainer_pod import TrainerPod

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.report.metrics_file import MetricsRecord, read_metrics

pytestmark = [pytest.mark.engine, pytest.mark.matrix]

STEPS = 6
IS_NOT_COMPUTED = ("seconds", "_time", "per_second", "sent_bytes")
"""How the names of metrics end that depend on the clock, or on how weights travel."""


def copy_job(process: str, *, steps: int) -> RunConfig:
    """The copy task on two ranks with long completions: there is time to hurt an engine while it samples."""
    return run_config(
        mode="Colocated",
        algorithm={
            "steps": steps,
            "promptsPerStep": 8,
            "groupSize": 8,
            "optimizer": {"learningRate": 1e-3},
        },
        sampling={"maxTokens": 48},
        trainer={"processesPerNode": 2},
        engine={"process": process, "maxModelLen": 64, "kvCacheMemory": "64Mi"},
    )


def computed(folder: Path) -> list[dict[str, float]]:
    """All metrics of each step but for the times."""
    records: list[MetricsRecord] = read_metrics(folder / "output" / "metrics.jsonl")
    return [
        {name: value for name, value in record.values.items() if not name.endswith(IS_NOT_COMPUTED)}
        for record in records
    ]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    """What two ranks compute with their engines in themselves."""
    folder = tmp_path_factory.mktemp("shared")
    trainer = start_trainer(folder, copy_job("Shared", steps=STEPS))
    code, message = trainer.end()
    assert code == 0, f"{message}\n{trainer.log()}"
    found = computed(folder)
    assert len(found) == STEPS
    assert all("completions/crc32" in values for values in found)
    return found


def children_of(trainer: TrainerPod) -> list[int]:
    """The engines' processes, in the order of their ids."""
    found = []
    for rank in trainer.ranks():
        try:
            children = [file.read_text() for file in Path(f"/proc/{rank}/task").glob("*/children")]
        except OSError:
            # a thread has ended meanwhile: ask again
            return children_of(trainer)
        found += [pid for pid in " ".join(children).split() if is_engine(pid)]
    return sorted(map(int, found))


def is_engine(pid: str) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        # it has ended meanwhile
        return False
    return b"grpo_runtime.engines.colocated.engine_child" in words


def has_the_weights(pid: int) -> bool:
    """Whether the process has mapped its rank's copy, which it does when its first transfer begins."""
    try:
        return "memfd:grpo-weights" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        # it has ended
        return False


def has_ended(pid: int) -> bool:
    """Also when nobody has asked for its exit code yet."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def test_an_engine_killed_in_a_transfer_and_one_stopped_change_no_number_and_all_end_with_their_ranks(
    tmp_path: Path, shared: list[dict[str, float]]
) -> None:
    trainer = start_trainer(tmp_path, copy_job("Own", steps=10 * STEPS))
    wait_until(lambda: any(map(has_the_weights, children_of(trainer))), "the first transfer", seconds=300)
    os.kill(next(filter(has_the_weights, children_of(trainer))), signal.SIGKILL)
    trainer.wait_until(lambda progress: progress.step >= 2)
    before = children_of(trainer)
    assert len(before) == 2
    os.kill(before[-1], signal.SIGSTOP)
    wait_until(lambda: set(children_of(trainer)) - set(before), "another engine")
    trainer.wait_until(lambda progress: progress.step >= 4)
    engines = children_of(trainer)
    trainer.terminate()
    code, message = trainer.end()
    assert (code, message.reason) == (143, "Terminated"), trainer.log()
    wait_until(lambda: all(map(has_ended, engines)), "the engines end")
    log = trainer.whole_log()
    assert log.count("is lost and started again") == 2
    assert "its process was killed by SIGKILL" in log
    assert "its process has been hung for 10 s" in log
    found = computed(tmp_path)
    assert len(found) >= 4
    assert found[:STEPS] == shared[: len(found)]
