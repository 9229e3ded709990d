"""kill -9 of every training process, over vLLM: the next attempt takes what was finished from the journal.

Every step that was trained before ends with the same weights.

Every point of a step, over a scripted engine: test_journal_kills.py.
"""

import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kill_cells import AGENTS
from killed_runs import CHECKSUM, all_records, newest_checkpoint, tear
from local_job import LocalEngines, local_engines, start_trainer
from pod_builder import run_config
from trainer_pod import TrainerPod

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.report.metrics_file import read_metrics
from grpo_runtime.rollouts.frames import decode_frames

pytestmark = pytest.mark.engine

HERE = str(Path(__file__).parent)
"""Where the reward function is."""
STEPS, EVERY_STEPS, PROMPTS, GROUP = 5, 2, 4, 4
KILLED_IN = 3
"""The second step behind a checkpoint: the one before it is replayed whole."""


@dataclass(frozen=True)
class Cell:
    """One killed run; DDP where there is no strategy."""

    mode: str
    num_ranks: int
    strategy: str | None
    moment: str


MOMENTS = ("generation", "scored", "trained", "saving", "reward", "torn record")
"""A torn record is one of a sample that was being written: it is cut off after the kill."""
VALUES = (("Disaggregated", "Colocated"), (1, 2), (None, "FSDP2", "ZeRO2"), MOMENTS)
"""Of the fields of a Cell."""
IN_MAKE_TEST = {
    Cell("Disaggregated", 1, None, "generation"),
    Cell("Colocated", 2, "ZeRO2", "trained"),
}
"""One of each mode; kill_cells.py has the pairs of all four over fakes. The rest is in `make test-matrix`."""


def killable_job(
    mode: str,
    num_ranks: int,
    strategy: str | None,
    *,
    reward: str = "builtin",
    function: str = "char_accuracy",
    **more: Any,
) -> RunConfig:
    """Completions long enough to be killed among them."""
    sections: dict[str, Any] = {
        "algorithm": {
            "steps": STEPS,
            "promptsPerStep": PROMPTS,
            "groupSize": GROUP,
            "numIterations": 2,
            "optimizer": {"learningRate": 1e-3},
        },
        "rewards": [{"name": "copy", reward: function}],
        "sampling": {"maxTokens": 40, **more.pop("sampling", {})},
        "trainer": {"processesPerNode": num_ranks, "strategy": strategy},
        # four calls one after the other, so that there is a time between them
        "engine": {"maxModelLen": 64, "kvCacheMemory": "64Mi", "maxNumSeqs": 4},
        "checkpoint": {"everySteps": EVERY_STEPS, "claimName": "claim"},
    }
    return run_config(mode=mode, **sections, **more)


@dataclass(frozen=True)
class Kept:
    """The journal at the moment of the kill: kinds of records by step, each sample once."""

    kinds: dict[int, Counter[str]]

    def num_samples(self, step: int) -> int:
        return self.kinds.get(step, Counter())["generated"]


def read_journal(folder: Path) -> Kept:
    """The whole journal, to which nothing is written."""
    steps = [int(path.name.removeprefix("step-")) for path in (folder / "output" / "journal").iterdir()]
    return Kept({step: kinds_of(folder, step) for step in steps})


def kinds_of(folder: Path, step: int) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for path in (folder / "output" / "journal" / f"step-{step:06d}").glob("*.journal"):
        frames, _ = decode_frames(path.read_bytes())
        kinds.update(frame.header["kind"] for frame in frames)
    return kinds


def is_generating(folder: Path) -> bool:
    return kinds_of(folder, KILLED_IN)["generated"] > 0


def is_generating_on(folder: Path) -> bool:
    """Of two samples one is left when the other is torn."""
    return kinds_of(folder, KILLED_IN)["generated"] > 1


def is_scored(folder: Path) -> bool:
    return kinds_of(folder, KILLED_IN)["scored"] > 0


def is_trained(folder: Path) -> bool:
    return kinds_of(folder, KILLED_IN)["trained"] > 0


def is_saving(folder: Path) -> bool:
    return any((folder / "output" / "checkpoints").glob(f".tmp-step-{KILLED_IN + 1:06d}-*"))


def is_in_reward_call(folder: Path) -> bool:
    return mark_of(folder).exists()


def mark_of(folder: Path) -> Path:
    """Made by `scripted_rewards:held`, which then waits for its end."""
    return folder / "in-reward-call"


Moment = Callable[[Path], bool]
HAS_COME: dict[str, Moment] = {
    "generation": is_generating,
    "scored": is_scored,
    "trained": is_trained,
    "saving": is_saving,
    "reward": is_in_reward_call,
    "torn record": is_generating_on,
}
assert HAS_COME.keys() == set(MOMENTS)
NUM_TRIES = 3
"""A moment is short, and may be over before the kill comes."""
CELLS = [
    pytest.param(
        cell,
        id=" ".join(map(str, vars(cell).values())),
        marks=() if cell in IN_MAKE_TEST else pytest.mark.matrix,
    )
    for cell in itertools.starmap(Cell, itertools.product(*VALUES))
]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngines]:
    folder = tmp_path_factory.mktemp("engines")
    with local_engines(folder, killable_job("Disaggregated", 1, None), count=1) as started:
        yield started


@pytest.fixture(scope="module")
def next_attempt() -> Callable[[], int]:
    """Engines refuse a lower attempt than they have heard."""
    numbers = iter(range(1, 10_000))
    return lambda: next(numbers)


def kill_at(trainer: TrainerPod, folder: Path, moment: Moment) -> None:
    """Kill every rank as soon as the moment has come."""
    deadline = time.monotonic() + 300
    while not moment(folder):
        assert trainer.process.poll() is None, trainer.log()
        assert time.monotonic() < deadline, trainer.log()
        time.sleep(0.001)
    for pid in trainer.ranks():
        with suppress(ProcessLookupError):  # it has ended because another one was killed
            os.kill(pid, signal.SIGKILL)
    code, _ = trainer.end()
    assert code == 137


def is_over(folder: Path, moment: str) -> bool:
    """Whether a killed run had come further."""
    if moment == "saving":
        return newest_checkpoint(folder) > KILLED_IN
    is_generated = kinds_of(folder, KILLED_IN)["generated"] == PROMPTS * GROUP
    return is_generated and moment in ("generation", "torn record")


@pytest.mark.parametrize("cell", CELLS)
def test_a_killed_run_goes_on_from_its_journal(
    tmp_path: Path, request: pytest.FixtureRequest, next_attempt: Callable[[], int], cell: Cell
) -> None:
    by = {"reward": "function", "function": "scripted_rewards:held"} if cell.moment == "reward" else {}
    run = killable_job(cell.mode, cell.num_ranks, cell.strategy, **by)
    fleet = request.getfixturevalue("engines") if cell.mode == "Disaggregated" else None
    kill_and_go_on(tmp_path, run, fleet, next_attempt, cell=cell)


@pytest.mark.matrix
def test_a_killed_run_of_agents_goes_on_from_its_journal(
    tmp_path: Path, engines: LocalEngines, next_attempt: Callable[[], int]
) -> None:
    """Half of its episodes are two calls."""
    cell = Cell("Disaggregated", 1, None, "generation")
    run = killable_job(cell.mode, cell.num_ranks, cell.strategy, **AGENTS)
    kill_and_go_on(tmp_path, run, engines, next_attempt, cell=cell)


def kill_and_go_on(
    tmp_path: Path,
    run: RunConfig,
    fleet: LocalEngines | None,
    next_attempt: Callable[[], int],
    *,
    cell: Cell,
) -> None:
    """Kill a run at a moment, and assert that the next attempt does what is left and ends with the same."""
    for number in range(NUM_TRIES):
        folder, first = tmp_path / str(number), next_attempt()
        held = {"HELD_IN": str(KILLED_IN), "HELD_MARK": str(mark_of(folder)), "PYTHONPATH": HERE}
        trainer = start_trainer(folder, run, fleet, attempt=first, environment=held)
        kill_at(trainer, folder, HAS_COME[cell.moment])
        if not is_over(folder, cell.moment):
            break
    else:
        pytest.fail(f"{NUM_TRIES} times the kill came too late to show anything")
    if cell.moment == "torn record":
        tear(folder, KILLED_IN, attempt=first)
    kept, saved_step, second = read_journal(folder), newest_checkpoint(folder), next_attempt()
    trainer = start_trainer(folder, run, fleet, attempt=second, environment={"PYTHONPATH": HERE})
    code, message = trainer.end()
    assert code == 0, f"{message}\n{trainer.log()}"

    records = all_records(folder)
    before = {record.step - 1: record.values for record in records if record.attempt == first}
    after = {record.step - 1: record.values for record in records if record.attempt == second}
    resumed_at = min(after)
    # a save that is still being written when the kill comes does not count
    assert resumed_at == saved_step
    assert resumed_at in (0, EVERY_STEPS, KILLED_IN + 1)
    for step, values in after.items():
        # what has a whole record is not sampled again, and everything else is
        assert values["journal/replayed_samples"] == kept.num_samples(step)
        assert ("sync/engines" in values) == (kept.num_samples(step) < PROMPTS * GROUP)
        if kept.kinds.get(step, Counter())["trained"]:
            assert values["journal/digest_differs"] == 0
        if step in before:
            assert values[CHECKSUM] == before[step][CHECKSUM]
            assert values["completions/crc32"] == before[step]["completions/crc32"]
            assert values["reward"] == before[step]["reward"]
    if resumed_at <= EVERY_STEPS:
        assert after[EVERY_STEPS]["journal/replayed_samples"] == PROMPTS * GROUP
    assert [record.step for record in read_metrics(folder / "output" / "metrics.jsonl")] == list(
        range(1, STEPS + 1)
    )
    if cell.moment in ("generation", "torn record"):
        assert 0 < kept.num_samples(KILLED_IN) < PROMPTS * GROUP
    if cell.moment == "reward":
        assert kept.kinds[KILLED_IN]["scored"] == 0
    if cell.moment == "saving":
        assert resumed_at <= EVERY_STEPS
