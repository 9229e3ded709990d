"""A standstill of the training processes of a pod is noticed, told, and taken back."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest
from pod_builder import run_config, trainer_environment
from polling import wait_until

from grpo_api.contract.progress import Progress
from grpo_runtime.process.procfs import kernel_state
from grpo_runtime.report.position import OwnPosition, position_path, read_positions
from grpo_runtime.report.progress import ProgressFile, read_progress
from grpo_runtime.settings import TrainerSettings, read_trainer_settings
from grpo_runtime.supervisor.positions import PodPositions, RankPosition
from grpo_runtime.supervisor.standstill import LONGER_FACTOR, PATIENCE_SECONDS, Standstill


class Pod:
    """A pod whose processes are this one."""

    def __init__(self, folder: Path, *, num_nodes: int = 1, num_ranks: int = 2) -> None:
        run = run_config(trainer={"numNodes": num_nodes, "processesPerNode": num_ranks})
        self.settings = read_trainer_settings(trainer_environment(folder, run))
        self.settings.run_dir.mkdir(parents=True)
        self.progress = ProgressFile(self.settings.run_dir, Progress(job_uid="uid", attempt=1, total_steps=5))
        self.now = 0.0
        self.dumped: list[list[int]] = []
        self.others: list[PodPositions] = []
        self.num_asked = self.num_answers = 0
        self.before_answer: Callable[[], object] = lambda: None
        self.ranks = [
            OwnPosition(position_path(self.settings.run_dir, rank), clock=lambda: self.now)
            for rank in range(num_ranks)
        ]
        self.standstill = Standstill(
            self.settings, dump_stacks=self.dump, ask_others=self.ask, clock=lambda: self.now
        )

    def dump(self, local_ranks: Collection[int]) -> None:
        self.dumped.append(list(local_ranks))

    def ask(self, settings: TrainerSettings) -> list[PodPositions]:
        self.num_asked += 1
        self.before_answer()
        self.num_answers += 1
        return self.others

    def at(self, now: float) -> str:
        """What the report says after a look at this time."""
        self.now = now
        self.standstill.look()
        progress = read_progress(self.settings.run_dir)
        assert progress is not None
        return progress.message


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


def test_a_standstill_is_told_with_the_place_of_every_rank(pod: Pod) -> None:
    pod.ranks[0].at("waits for the other ranks")
    pod.ranks[1].at("computes gradients", "micro-batch 2 of 3")
    assert pod.at(0.0) == ""
    assert pod.at(PATIENCE_SECONDS - 0.1) == ""
    assert pod.at(PATIENCE_SECONDS) == (
        "no training process has made progress for 10 s: rank 1 computes gradients, micro-batch 2 of 3; "
        "rank 0 waits for the other ranks"
    )
    assert "for 50 s" in pod.at(59.0)
    assert pod.dumped == [[0, 1]], "the stacks are printed once"


def test_it_is_over_when_one_process_goes_on(pod: Pod, caplog: pytest.LogCaptureFixture) -> None:
    for rank in pod.ranks:
        rank.at("computes gradients")
    pod.at(0.0)
    assert pod.at(40.0) != ""
    pod.ranks[1].moved()
    assert pod.at(41.0) == ""
    assert "continue after 41 s" in caplog.text
    assert pod.at(41.0 + PATIENCE_SECONDS - 1) == ""
    assert pod.at(200.0) != ""
    assert len(pod.dumped) == 2, "the next standstill prints them again"


def test_what_takes_long_every_time_is_given_three_times_as_long(pod: Pod) -> None:
    pod.at(0.0)
    for now in (0.0, 40.0):
        pod.now = now
        for rank in pod.ranks:
            rank.at("updates the weights")
    pod.at(40.0)
    assert pod.at(40.0 + LONGER_FACTOR * 40.0 - 1) == ""
    assert pod.at(40.0 + LONGER_FACTOR * 40.0) != ""


def test_a_pod_whose_processes_have_not_begun_does_not_stand_still(pod: Pod) -> None:
    assert [pod.at(now) for now in (0.0, 1000.0)] == ["", ""]
    assert pod.dumped == []


def test_the_first_pod_learns_where_the_ranks_of_the_others_are(tmp_path: Path) -> None:
    pod = Pod(tmp_path, num_nodes=3, num_ranks=1)
    stopped = RankPosition(rank=2, state="T", doing="computes gradients")
    pod.others = [PodPositions(attempt=1, node_index=2, positions=(stopped,))]
    pod.ranks[0].at("waits for the other ranks")
    pod.at(0.0)
    assert pod.num_asked == 0, "nobody is asked while all continues"
    own = "rank 0 waits for the other ranks"
    assert pod.at(20.0).endswith(f": {own}")
    wait_until(lambda: "does not answer" in pod.at(20.0), "the answer of the others")
    assert pod.at(20.0).endswith(
        f": rank 2 is stopped (by SIGSTOP) while it computes gradients; {own}; trainer pod 1 does not answer"
    )
    pod.ranks[0].moved()
    assert pod.at(21.0) == ""


def test_what_other_pods_said_in_an_earlier_standstill_is_not_told_in_the_next(tmp_path: Path) -> None:
    pod = Pod(tmp_path, num_nodes=2, num_ranks=1)
    stopped = RankPosition(rank=1, state="T", doing="computes gradients")
    pod.others = [PodPositions(attempt=1, node_index=1, positions=(stopped,))]
    pod.ranks[0].at("waits for the other ranks")
    pod.at(0.0)
    wait_until(lambda: "rank 1" in pod.at(20.0), "the answer of the other pod")
    pod.ranks[0].moved()
    assert pod.at(21.0) == ""
    may_answer = threading.Event()
    pod.before_answer = lambda: may_answer.wait(10)
    assert pod.at(200.0).endswith(": rank 0 waits for the other ranks")
    # one that comes when that standstill is over says nothing of the next
    pod.ranks[0].moved()
    assert pod.at(201.0) == ""
    may_answer.set()
    wait_until(lambda: pod.num_answers == pod.num_asked, "the late answer")
    assert pod.at(999.0).endswith(": rank 0 waits for the other ranks")
    wait_until(lambda: "rank 1" in pod.at(999.0), "the answer of the other pod")


HANGS = """
import signal, sys
from pathlib import Path
from grpo_runtime.report.position import OwnPosition

def a_function_that_hangs():
    OwnPosition.told_in(Path(sys.argv[1]), local_rank=0).at("computes gradients")
    while True:  # a signal ends a pause
        signal.pause()

a_function_that_hangs()
"""


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that tells its position and hangs."""
    arguments = [sys.executable, "-c", HANGS, str(tmp_path)]
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def test_a_process_that_tells_its_position_prints_its_stacks_on_request(
    hanging: subprocess.Popen[str], tmp_path: Path
) -> None:
    wait_until(lambda: read_positions(tmp_path), "its position")
    os.kill(hanging.pid, signal.SIGUSR1)
    assert hanging.stderr is not None
    lines = iter(hanging.stderr.readline, "")
    assert any("a_function_that_hangs" in line for line in lines)
    assert hanging.poll() is None


def test_a_stopped_process_is_known_by_its_state(hanging: subprocess.Popen[str], tmp_path: Path) -> None:
    wait_until(lambda: read_positions(tmp_path), "its position")
    os.kill(hanging.pid, signal.SIGSTOP)
    wait_until(lambda: kernel_state(hanging.pid) == "T", "the stop")
