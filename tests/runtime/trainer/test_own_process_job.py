"""Mode Colocated with each engine in a process of its own: it computes the same, and its rank outlives it."""

import os
import signal
from pathlib import Path

import pytest
from local_job import start_trainer
from pod_builder import run_config
from polling import wait_until
from trainer_pod import TrainerPod

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.report.metrics import MetricsRecord, read_metrics

pytestmark = pytest.mark.engine

STEPS = 12
IS_NOT_COMPUTED = ("_seconds", "_time", "per_second", "sent_bytes")
"""How the names of metrics end that depend on the clock, or on how weights travel."""


def copy_job(process: str, *, num_ranks: int = 1, arguments: tuple[str, ...] = ()) -> RunConfig:
    """The copy task with long completions, so that there is time to hurt an engine while it samples."""
    return run_config(
        mode="Colocated",
        algorithm={
            "steps": STEPS,
            "promptsPerStep": 8,
            "groupSize": 8,
            "optimizer": {"learningRate": 1e-3},
        },
        sampling={"maxTokens": 48},
        trainer={"processesPerNode": num_ranks},
        engine={"process": process, "maxModelLen": 64, "kvCacheMemory": "64Mi", "args": list(arguments)},
    )


def computed(folder: Path) -> list[dict[str, float]]:
    """All metrics of each step but for the times."""
    records: list[MetricsRecord] = read_metrics(folder / "output" / "metrics.jsonl")
    return [
        {name: value for name, value in record.values.items() if not name.endswith(IS_NOT_COMPUTED)}
        for record in records
    ]


def end_well(trainer: TrainerPod) -> None:
    code, message = trainer.end()
    assert code == 0, f"{message}\n{trainer.log()}"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    """What two ranks compute with their engines in themselves."""
    folder = tmp_path_factory.mktemp("shared")
    end_well(start_trainer(folder, copy_job("Shared", num_ranks=2)))
    found = computed(folder)
    assert len(found) == STEPS
    assert all("completions/crc32" in values for values in found)
    return found


def children_of(trainer: TrainerPod) -> list[int]:
    """The engines' processes, in the order of their ids."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            session = (folder / "stat").read_text().rpartition(")")[2].split()[3]
        except OSError:
            # it has ended meanwhile
            continue
        if b"grpo_runtime.colocated.engine_child" in words and int(session) == trainer.process.pid:
            found.append(int(folder.name))
    return sorted(found)


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


def test_the_metrics_of_every_step_are_those_of_engines_in_the_ranks(
    tmp_path: Path, shared: list[dict[str, float]]
) -> None:
    trainer = start_trainer(tmp_path, copy_job("Own", num_ranks=2))
    trainer.wait_until(lambda progress: progress.step >= 1)
    engines = children_of(trainer)
    assert len(engines) == 2
    end_well(trainer)
    assert computed(tmp_path) == shared
    wait_until(lambda: all(map(has_ended, engines)), "the engines end")


def test_an_engine_killed_and_one_stopped_change_no_number(
    tmp_path: Path, shared: list[dict[str, float]]
) -> None:
    trainer = start_trainer(tmp_path, copy_job("Own", num_ranks=2))
    for step, number in ((2, signal.SIGKILL), (5, signal.SIGSTOP)):
        trainer.wait_until(lambda progress, step=step: progress.step >= step)  # type: ignore[misc]
        before = children_of(trainer)
        os.kill(before[-1], number)
        wait_until(
            lambda before=before: set(children_of(trainer)) - set(before),  # type: ignore[misc]
            "another engine",
        )
    end_well(trainer)
    log = trainer.whole_log()
    assert log.count("is lost and started again") == 2
    assert "its process was killed by SIGKILL" in log
    assert "its process has stood still for 10 s" in log
    assert computed(tmp_path) == shared


def test_an_engine_killed_while_it_takes_the_weights_changes_no_number(
    tmp_path: Path, shared: list[dict[str, float]]
) -> None:
    trainer = start_trainer(tmp_path, copy_job("Own", num_ranks=2))
    wait_until(lambda: any(map(has_the_weights, children_of(trainer))), "the first transfer", seconds=300)
    taking = next(filter(has_the_weights, children_of(trainer)))
    os.kill(taking, signal.SIGKILL)
    end_well(trainer)
    assert trainer.whole_log().count("is lost and started again: its process was killed by SIGKILL") == 1
    assert computed(tmp_path) == shared


def test_a_wrong_engine_argument_is_named(tmp_path: Path) -> None:
    code, message = start_trainer(tmp_path, copy_job("Own", arguments=("--wibble=1",))).end()
    assert (code, message.reason) == (40, "UserError")
    assert "engine.args" in message.message
    assert "--wibble" in message.message


def test_a_stop_ends_the_engine_with_its_rank(tmp_path: Path) -> None:
    trainer = start_trainer(tmp_path, copy_job("Own"))
    trainer.wait_until(lambda progress: progress.step >= 1)
    engines = children_of(trainer)
    trainer.terminate()
    code, message = trainer.end()
    assert (code, message.reason) == (143, "Terminated")
    wait_until(lambda: all(map(has_ended, engines)), "the engine ends")
