"""The engine of a rank in a process of its own that is killed, crashes, hangs and refuses: real child
processes over a fake engine. Most are forks of a process that has imported torch; some are started as a rank
does it."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_local_engine import some_weights, token_of
from forked_children import ChildServer
from polling import wait_until

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.colocated.child_engine import ChildEngine
from grpo_runtime.engines.colocated.child_liveness import ChildLimits
from grpo_runtime.engines.colocated.engine_process import StartProcess, spawned
from grpo_runtime.engines.colocated.rank_engine import PHASES
from grpo_runtime.engines.colocated.recovering_engine import RecoveringEngine
from grpo_runtime.errors import UserError
from grpo_runtime.rollouts.interface import EngineError, GenerateRequest, Probe
from grpo_runtime.weight_sync.registry import SHARED_MEMORY

REQUESTS = [GenerateRequest(prompt_ids=(1, 2), seed=seed + 2**60) for seed in range(4)]
TOKENS = [token_of(request.seed) for request in REQUESTS]
PROBE = Probe(token_ids=(1, 2, 3), logprobs=(-0.1, -2 / 3), tolerance=1e-4)
LIMITS = ChildLimits(hung_after_seconds=60.0, call_seconds=60.0, start_seconds=60.0)
"""More than a busy machine lets an engine wait that goes on."""
SOON = replace(LIMITS, hung_after_seconds=2.0)
VERSION = PolicyVersion(attempt=1, step=3)


class Rank:
    """A rank over fake children; `pids` are those of all that it has started."""

    def __init__(
        self,
        folder: Path,
        accidents: list[tuple[str, str]],
        logprobs: tuple[float, ...],
        start_process: StartProcess,
        limits: ChildLimits,
    ) -> None:
        self._starts = folder / "starts"
        self._plan = folder / "plan"
        self.plan(*accidents)
        self._message: Mapping[str, Any] = {
            "plan": str(self._plan),
            "starts": str(self._starts),
            "logprobs": logprobs,
        }
        self._start_process = start_process
        self._limits = limits
        self.children: list[ChildEngine] = []
        self.memory: list[str] = []
        """When the rank gave memory back, and when an engine took it."""
        self.engine = RecoveringEngine(
            self._start,
            backend=SHARED_MEMORY,
            sleep_level=1,
            timeout_seconds=60.0,
            release_memory=lambda: self.memory.append("release"),
        )

    def _start(self) -> ChildEngine:
        self.memory.append("start")
        child = ChildEngine(self._start_process, message=self._message, limits=self._limits)
        self.children.append(child)
        return child

    def plan(self, *accidents: tuple[str, str]) -> None:
        """What happens from now on: a place and what happens there, each once and in this order."""
        self._plan.write_text(json.dumps(accidents))

    @property
    def num_accidents_to_come(self) -> int:
        return len(json.loads(self._plan.read_text()))

    @property
    def pids(self) -> list[int]:
        return [int(line) for line in self._starts.read_text().split()]

    def run_step(self, step: int = 3, probe: Probe | None = PROBE) -> None:
        """Sync and sample, and compare the samples."""
        version = PolicyVersion(attempt=1, step=step)
        sync = self.engine.sync(some_weights(), version=version, probe=probe)
        assert (sync.probe_error, sync.num_bytes, len(sync.phase_seconds)) == (0.0, 16, len(PHASES))
        self.sample(version)
        assert self.engine.num_finished == len(REQUESTS)

    def sample(self, version: PolicyVersion) -> None:
        """Sample with the weights of `version`, and compare the samples."""
        rollouts = self.engine.generate(REQUESTS)
        assert [rollout.completion_ids[0] for rollout in rollouts] == TOKENS
        assert {span.version for rollout in rollouts for span in rollout.versions} == {version}


MakeRank = Callable[..., Rank]


@pytest.fixture(scope="module")
def forked() -> Iterator[StartProcess]:
    server = ChildServer()
    yield server.start_child
    server.close()


@pytest.fixture
def rank(tmp_path: Path, forked: StartProcess) -> Iterator[MakeRank]:
    made: list[Rank] = []

    def make(
        *accidents: tuple[str, str],
        logprobs: tuple[float, ...] = PROBE.logprobs,
        start_process: StartProcess = forked,
        limits: ChildLimits = LIMITS,
    ) -> Rank:
        made.append(Rank(tmp_path, list(accidents), logprobs, start_process, limits))
        return made[-1]

    yield make
    for one in made:
        for child in one.children:
            child.close()


def as_a_rank_does() -> StartProcess:
    """A program of its own, which imports what it needs."""
    script = str(Path(__file__).with_name("fake_child.py"))
    return spawned((sys.executable, script), dict(os.environ))


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def lost(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Why engines were lost, as the log says."""
    return [
        record.getMessage().partition("started again: ")[2]
        for record in caplog.records
        if "lost and started again" in record.getMessage()
    ]


PLACES = ("init", "update", "finish", "probe", "sample", "sampled 1", "sampled 3", "sleep")


def test_an_engine_killed_anywhere_is_started_again_and_every_sample_is_there(
    rank: MakeRank, caplog: pytest.LogCaptureFixture
) -> None:
    one = rank()
    assert one.pids != [os.getpid()]
    for step, place in enumerate(PLACES):
        one.plan((place, "SIGKILL"))
        one.run_step(step)
    for step in range(len(PLACES), len(PLACES) + 3):
        one.run_step(step)
    assert len(lost(caplog)) == len(PLACES)
    assert all("killed by SIGKILL" in why for why in lost(caplog))
    assert len(one.pids) == len(PLACES) + 1
    assert [is_alive(pid) for pid in one.pids] == [False] * len(PLACES) + [True]
    assert not one.engine.is_starting_again


def test_an_engine_that_starts_finds_the_memory_that_the_trainer_has_cached(rank: MakeRank) -> None:
    one = rank(("sample", "SIGKILL"), start_process=as_a_rank_does())
    one.run_step(0)
    assert one.memory == ["release", "start"] * 2


def test_a_crash_is_told_by_its_cause_and_mended(rank: MakeRank, caplog: pytest.LogCaptureFixture) -> None:
    one = rank(("start", "SIGSEGV"), ("sampled 0", "exit"), ("wake", "the GPU is broken"))
    for step in range(3):
        one.run_step(step)
    causes = ("killed by SIGSEGV", "ended with exit code 3", "RuntimeError: the GPU is broken")
    for cause, why in zip(causes, lost(caplog), strict=True):
        assert cause in why


def test_a_stopped_process_is_killed_and_replaced(rank: MakeRank, caplog: pytest.LogCaptureFixture) -> None:
    one = rank(("sampled 1", "SIGSTOP"), limits=SOON)
    one.run_step(0)  # its first generation, in which it may compile
    for step, place in enumerate(("update", "finish", "sampled 2")):
        one.run_step(2 * step + 1)
        one.plan((place, "SIGSTOP"))
        one.run_step(2 * step + 2)
    # patience grows only while no sample is finished
    assert lost(caplog) == ["its process has been hung for 2 s"] * 4
    assert [is_alive(pid) for pid in one.pids] == [False] * 4 + [True]


def test_an_engine_that_hangs_while_its_process_goes_on_is_replaced(
    rank: MakeRank, caplog: pytest.LogCaptureFixture
) -> None:
    one = rank(limits=SOON)
    one.run_step()
    one.plan(("sampled 1", "hang"))
    one.run_step(4)
    assert "it has samples to draw and has taken no step for 2 s" in caplog.text
    assert not is_alive(one.pids[0])


def test_an_engine_that_ended_and_left_a_process_of_its_own_is_not_called_hung_and_that_one_ends_too(
    rank: MakeRank, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = rank(start_process=as_a_rank_does())
    one.run_step()
    one.plan(("sampled 1", "leave a process"))
    one.run_step(4)
    assert lost(caplog) == ["its process ended with exit code 3; see the log"]
    left = int((tmp_path / "left").read_text())
    wait_until(lambda: not is_alive(left), "what the engine left ends")
    assert [is_alive(pid) for pid in one.pids] == [False, True]


def test_an_engine_that_compiles_in_its_first_generation_is_left_to_it(
    rank: MakeRank, caplog: pytest.LogCaptureFixture
) -> None:
    one = rank(("probe", "compile"), ("sample", "compile"), ("sampled 1", "compile"), limits=SOON)
    one.run_step()
    one.run_step(4)
    assert not lost(caplog)
    assert len(one.pids) == 1


def test_an_engine_killed_in_its_sleep_is_noticed_at_once_and_started_at_the_next_sync(
    rank: MakeRank, caplog: pytest.LogCaptureFixture
) -> None:
    one = rank()
    one.run_step()
    os.kill(one.pids[0], signal.SIGKILL)
    wait_until(lambda: "gone while it had nothing to do" in caplog.text, "the rank notices")
    assert len(one.pids) == 1
    one.run_step(4)
    assert len(one.pids) == 2


def test_one_that_is_lost_again_and_again_ends_with_its_cause(rank: MakeRank) -> None:
    one = rank(*[("sample", "SIGKILL")] * 9)
    one.engine.sync(some_weights(), version=VERSION, probe=None)
    with pytest.raises(EngineError, match=r"lost 3 times without finishing a sample.*killed by SIGKILL"):
        one.engine.generate(REQUESTS)
    # a slow one would not be called hung as fast
    assert [child.patience for child in one.children] == [1, 2, 4]
    assert not any(map(is_alive, one.pids))


def test_failures_with_samples_in_between_do_not_add_up(rank: MakeRank) -> None:
    one = rank(*[("sampled 0", "SIGKILL")] * 3)
    one.run_step()
    assert len(one.pids) == 4


def test_one_that_cannot_be_synced_ends_with_its_cause(rank: MakeRank) -> None:
    one = rank(*[("finish", "no memory")] * 9)
    with pytest.raises(EngineError, match=r"lost 3 times.*RuntimeError: no memory"):
        one.engine.sync(some_weights(), version=VERSION, probe=None)


def test_a_wrong_argument_ends_a_restart_at_once(rank: MakeRank) -> None:
    one = rank(("sample", "SIGKILL"), ("make", "refuse"))
    one.engine.sync(some_weights(), version=VERSION, probe=None)
    with pytest.raises(UserError, match="--wibble"):
        one.engine.generate(REQUESTS)


def test_one_that_cannot_start_says_how_it_ended(rank: MakeRank) -> None:
    with pytest.raises(EngineError, match="exit code 3"):
        rank(("make", "exit"), start_process=as_a_rank_does())


def test_one_started_again_samples_only_if_it_computes_what_is_trained(rank: MakeRank) -> None:
    one = rank(("sample", "SIGKILL"), logprobs=(-0.1, -0.9))
    sync = one.engine.sync(some_weights(), version=VERSION, probe=PROBE)
    assert sync.probe_error == pytest.approx((0.9 - 2 / 3) / 2)  # rank 0 compares it with the tolerance
    with pytest.raises(
        EngineError, match=r"does not compute what is trained.*0\.117 nats, more than 0\.0001"
    ):
        one.engine.generate(REQUESTS)


def test_it_says_that_it_is_started_again_and_keeps_what_is_finished(rank: MakeRank) -> None:
    # the third engine has two samples to draw, and never comes to the last accident
    one = rank(("sampled 1", "SIGKILL"), ("make", "hang"), ("sampled 2", "SIGKILL"))
    one.engine.sync(some_weights(), version=VERSION, probe=None)
    failures: list[Exception] = []

    def generate() -> None:
        try:
            one.engine.generate(REQUESTS)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=generate, daemon=True)
    thread.start()
    wait_until(lambda: one.num_accidents_to_come == 1, "the second process hangs in its start")
    assert one.engine.is_starting_again
    assert one.engine.num_finished == 2
    os.kill(one.pids[1], signal.SIGKILL)
    thread.join(60)
    assert not failures
    assert len(one.pids) == 3
    assert one.engine.num_finished == len(REQUESTS)
    assert not one.engine.is_starting_again


def test_the_engine_ends_when_its_rank_is_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("rank_with_child.py")), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    pid = int(holder.stdout.readline())
    assert is_alive(pid)
    holder.kill()
    holder.wait()
    wait_until(lambda: not is_alive(pid), "the engine ends with its rank")
