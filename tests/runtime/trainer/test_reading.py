"""What rank 0 reads before the first step, and what a start that takes long says."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from fake_job import job
from forks import run_ranks
from reading_ranks import NUM_REPORTS
from trainer_pod import TrainerPod

from grpo_api.contract.progress import Progress, TrainerState
from grpo_runtime.local.ports import free_ports
from grpo_runtime.process.procfs import GrowingMemory
from grpo_runtime.report.progress import ProgressFile, StartingReport, read_progress
from grpo_runtime.trainer.checkpoint.reading import ReadingRank, ReadProgress
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.strategy.interface import TrainingState

SCRIPT = Path(__file__).with_name("reading_ranks.py")
GB = 1_000_000_000


def starting(run_dir: Path) -> None:
    """The first progress, as the supervisor writes it."""
    ProgressFile(run_dir, Progress(job_uid="uid", attempt=2, total_steps=9, message="starting"))


def known(run_dir: Path) -> tuple[TrainerState, int, str]:
    progress = read_progress(run_dir)
    assert progress is not None
    return progress.state, progress.heartbeat, progress.message


@pytest.mark.processes
def test_the_other_ranks_wait_for_longer_than_one_collective_operation_may_take(tmp_path: Path) -> None:
    starting(tmp_path)
    (port,) = free_ports(1)
    printed = run_ranks(SCRIPT, str(port), str(tmp_path))
    assert sorted(printed.splitlines()) == ["None 7", "what was read 7"]
    assert known(tmp_path) == (TrainerState.STARTING, NUM_REPORTS, "loading a checkpoint")


@pytest.mark.processes
def test_a_stop_of_any_rank_ends_the_reading_on_all(tmp_path: Path) -> None:
    starting(tmp_path)
    (port,) = free_ports(1)
    assert run_ranks(SCRIPT, str(port), str(tmp_path), "stop") == "stops\n" * 2


def test_what_cannot_be_read_is_raised(ranks: Ranks, tmp_path: Path) -> None:
    def work() -> None:
        raise OSError("the volume went away")

    with pytest.raises(OSError, match="the volume went away"):
        ReadingRank(ranks, run_dir=tmp_path).read(work)


def test_only_bytes_are_a_sign_of_life(tmp_path: Path) -> None:
    starting(tmp_path)
    now = 0.0
    report = StartingReport(tmp_path, clock=lambda: now)
    for now, num_bytes in ((0.0, 5), (0.5, 6), (2.0, 7), (4.0, 7), (6.0, 8)):
        report.report_bytes(f"{num_bytes} bytes", num_bytes=num_bytes)
        expected = {0.0: (1, "5 bytes"), 0.5: (1, "5 bytes"), 2.0: (2, "7 bytes"), 4.0: (2, "7 bytes")}
        assert known(tmp_path)[1:] == expected.get(now, (3, "8 bytes"))


def test_a_message_says_what_is_read_and_changes_ten_times() -> None:
    reading = ReadProgress()
    assert reading.message == ""
    reading.begin("checking it", total_bytes=5 * GB)
    messages = {reading.message}
    for _ in range(100):
        reading.add(5 * GB // 100)
        messages.add(reading.message)
    assert len(messages) == 11 and "checking it: 30% of 5.0 GB" in messages
    reading.begin("loading it", total_bytes=2 * GB)
    assert (reading.num_bytes, reading.message) == (5 * GB, "loading it: 0% of 2.0 GB")


def test_each_tensor_that_is_taken_counts_as_read(ranks: Ranks, tmp_path: Path) -> None:
    starting(tmp_path)
    reader = ReadingRank(ranks, run_dir=tmp_path)
    state = TrainingState(model={"a": torch.zeros(4)}, optimizer={"b": torch.ones(8)})
    counted = reader.counted(state, what="loading it")
    assert counted is not None and reader.reading.num_bytes == 0
    assert counted.model["a"] is state.model["a"]
    assert (reader.reading.num_bytes, known(tmp_path)[1]) == (16, 1)
    assert counted.optimizer["b"] is state.optimizer["b"] and not counted.reference
    assert reader.reading.num_bytes == 48
    assert reader.counted(None, what="nothing") is None


def test_memory_that_is_filled_counts_once() -> None:
    memory = GrowingMemory()
    filled = torch.ones(50 << 20)
    grown = memory.grown()
    assert abs(grown - filled.nbytes) <= 64 << 20 and grown % (16 << 20) == 0
    del filled
    assert memory.grown() <= 32 << 20


def large_file_in(checkpoint: Path, *, num_bytes: int) -> None:
    """Make a checkpoint one that takes seconds to read, by a file without blocks on the disk."""
    with (checkpoint / "large").open("wb") as file:
        file.truncate(num_bytes)
    with (checkpoint / "large").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["files"]["large"] = {"numBytes": num_bytes, "sha256": digest}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.processes
def test_a_pod_tells_which_checkpoint_it_reads_and_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    first = TrainerPod(tmp_path, job(checkpoint={"claimName": "claim"}), hang_at=2)
    first.wait_until(lambda progress: progress.step == 2)
    first.terminate()
    assert first.end()[0] == 143
    large_file_in(tmp_path / "output" / "checkpoints" / "step-000002", num_bytes=2 * GB)

    second = TrainerPod(tmp_path, job(checkpoint={"claimName": "claim"}), attempt=2)
    reading = second.wait_until(lambda progress: progress.heartbeat > 0)
    assert reading.state is TrainerState.STARTING
    assert reading.message.startswith("checking the checkpoint of step 2: ")
    assert reading.message.endswith("of 2.0 GB")
    second.terminate()
    code, message = second.end()
    assert (code, message.reason) == (143, "Terminated")

    third = TrainerPod(tmp_path, job(checkpoint={"claimName": "claim"}), attempt=3)
    code, message = third.end()
    assert code == 0, message
    assert message.progress is not None and message.progress.resumed_from_step == 2
