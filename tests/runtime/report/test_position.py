"""Where a training process is, as its supervisor reads it."""

import os
from pathlib import Path

import pytest

from grpo_api.contract.progress import Progress
from grpo_runtime.report.position import OwnPosition, Position, position_path, read_positions
from grpo_runtime.report.progress import STANDSTILL_FILE, ProgressFile, progress_json, read_progress


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def own(folder: Path, *, local_rank: int = 0, clock: Clock | None = None) -> OwnPosition:
    return OwnPosition(position_path(folder, local_rank), clock=clock or Clock())


def read(folder: Path) -> Position:
    return read_positions(folder)[0]


def test_the_supervisor_reads_what_a_process_does(tmp_path: Path) -> None:
    position = own(tmp_path)
    assert read_positions(tmp_path) == {}, "it has not said anything yet"
    position.at("computes gradients", "micro-batch 3 of 8", work=2)
    found = read(tmp_path)
    assert (found.pid, found.num_moves, found.num_work) == (os.getpid(), 1, 2)
    assert found.doing == "computes gradients, micro-batch 3 of 8"
    position.at("updates the weights", work=1)
    found = read(tmp_path)
    assert (found.num_moves, found.num_work, found.doing) == (2, 3, "updates the weights")


def test_the_longest_time_is_that_of_what_it_does_now(tmp_path: Path) -> None:
    clock = Clock()
    position = own(tmp_path, clock=clock)
    found = []
    for what, detail, seconds in (
        ("computes gradients", "micro-batch 1 of 2", 4.0),
        ("computes gradients", "micro-batch 2 of 2", 3.0),
        ("updates the weights", "", 20.0),
        ("computes gradients", "micro-batch 1 of 2", 0.0),
        ("updates the weights", "", 0.0),
    ):
        position.at(what, detail)
        found.append(read(tmp_path).longest_seconds)
        clock.now += seconds
    assert found == [0.0, 4.0, 0.0, 4.0, 20.0]


def test_going_on_with_the_same_is_a_move_too(tmp_path: Path) -> None:
    position = own(tmp_path)
    position.at("gives its weights to rank 0")
    position.moved(work=1)
    assert (read(tmp_path).num_moves, read(tmp_path).num_work) == (2, 1)
    assert read(tmp_path).doing == "gives its weights to rank 0"


def test_processes_are_read_in_the_order_of_their_ranks(tmp_path: Path) -> None:
    for rank in (10, 2, 0):
        own(tmp_path, local_rank=rank).at(f"is rank {rank}")
    found = read_positions(tmp_path)
    assert list(found) == [0, 2, 10]
    assert [position.doing for position in found.values()] == ["is rank 0", "is rank 2", "is rank 10"]


@pytest.mark.parametrize("text", ["x" * 1000, "é" * 500], ids=["ascii", "two bytes"])
def test_a_long_text_is_cut(tmp_path: Path, text: str) -> None:
    position = own(tmp_path)
    position.at(text)
    assert 100 < len(read(tmp_path).doing) <= 253
    position.at("short")
    assert read(tmp_path).doing == "short"


def test_a_process_whose_position_cannot_be_written_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    position = OwnPosition.told_in(tmp_path / "gone", local_rank=0)
    position.at("computes gradients")
    assert "will not know where this process is" in caplog.text


def test_a_file_that_is_being_made_is_no_position(tmp_path: Path) -> None:
    position_path(tmp_path, 0).write_bytes(b"\1" * 100)
    assert read_positions(tmp_path) == {}


def test_work_within_a_step_raises_the_heartbeat(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path, Progress(job_uid="uid", attempt=1, total_steps=5))
    file.update(step=2, message="engine a hangs")
    for rank in (0, 1):
        own(tmp_path, local_rank=rank).at("computes gradients", work=4)
    progress = read_progress(tmp_path)
    assert progress is not None
    assert (progress.heartbeat, progress.step, progress.message) == (9, 2, "engine a hangs")


def test_a_standstill_is_told_before_what_rank_0_said_last(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path, Progress(job_uid="uid", attempt=1, total_steps=5, message="it waits"))
    (tmp_path / STANDSTILL_FILE).write_text("no training process has made progress")
    still = "no training process has made progress"
    for said, expected in (("it waits", f"{still}; it waits"), ("", still)):
        file.update(message=said)
        served = progress_json(tmp_path)
        assert served is not None
        assert Progress.model_validate_json(served).message == expected
    (tmp_path / STANDSTILL_FILE).unlink()
    found = read_progress(tmp_path)
    assert found is not None and found.message == ""
