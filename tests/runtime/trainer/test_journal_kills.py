"""kill -9 at every point of a step, over a scripted engine: the next attempt does what is left, and its
weights are those of a run that nobody disturbed. On vLLM: test_journal_on_engines.py."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from killed_runs import (
    CHECKSUM,
    EVERY_STEPS,
    SAMPLES,
    STEPS,
    Asked,
    Attempts,
    Hurt,
    all_records,
    asked,
    attempts,
    damage,
    killable_job,
    last_state,
    on_disk,
    policy,
    tear,
    values,
)
from scripted_rank import NUM_IN_TIME

NO_REFERENCE: dict[str, Any] = {"algorithm": {"kl": None}}
"""ZeRO-3 does not spread one."""
ADAPTER: dict[str, Any] = {
    "model": {"source": "builtin://tiny", "lora": {"rank": 4}},
    # a reference that follows the policy is not for adapters
    "algorithm": {"kl": {"beta": 0.05}},
}
WAYS = {
    f"{prefix}{strategy} {num_ranks}": killable_job(mode=mode, num_ranks=num_ranks, strategy=strategy)
    for prefix, mode in (("", None), ("Colocated ", "Colocated"))
    for strategy in ("DDP", "FSDP2", "ZeRO2")
    for num_ranks in (1, 2)
}
MORE_WAYS = {
    "ZeRO1 2": killable_job(num_ranks=2, strategy="ZeRO1"),
    "ZeRO3 2": killable_job(num_ranks=2, strategy="ZeRO3", **NO_REFERENCE),
    "shared FSDP2 2": killable_job(num_ranks=2, strategy="FSDP2", checkpoint={"shared": True}),
    "shared ZeRO3 2": killable_job(
        num_ranks=2, strategy="ZeRO3", checkpoint={"shared": True}, **NO_REFERENCE
    ),
    "adapter DDP 2": killable_job(num_ranks=2, **ADAPTER),
    "adapter FSDP2 2": killable_job(num_ranks=2, strategy="FSDP2", **ADAPTER),
}
ALL_WAYS = WAYS | MORE_WAYS
STEP = 3
"""Killed in the fourth step, after a checkpoint of two: the third is replayed whole."""
CELLS: list[tuple[str, str, int, Hurt | None, set[int]]] = [
    ("generation", "generation", STEP, None, {2}),
    ("reward", "reward", STEP, None, {2}),
    ("generated", "generated", STEP, None, {2, 3}),
    ("scored", "scored", STEP, None, {2, 3}),
    ("training", "training", STEP, None, {2, 3}),
    ("between updates", "between updates", STEP, None, {2, 3}),
    ("trained", "trained", STEP, None, {2, 3}),
    ("between steps", "between steps", STEP, None, {2}),
    ("saving", "saving", STEP + 1, None, {2, 3}),
    ("saved", "saved", STEP + 1, None, set()),
    ("torn record", "generation", STEP, tear, {2}),
    ("damaged record", "scored", STEP, damage, {2}),
]
"""Name, point and step of the kill, what is done to the journal afterwards, and the steps of which
all samples must then be there; in a reward call the last ones may be on their way to the disk."""

SELECTED = {"scored", "saving"}
"""What `make test` has of MORE_WAYS."""
WITH_DAMAGED_FILES = {"DDP 1", "FSDP2 2", "Colocated DDP 1", "Colocated FSDP2 2"}
"""A damaged file of the journal is nothing to a strategy: `make test` has it for these."""


def marks_of(way: str, name: str) -> tuple[pytest.MarkDecorator, ...]:
    """Of a cell that only `make test-matrix` has."""
    is_left = way in MORE_WAYS and name not in SELECTED
    is_left |= name in ("torn record", "damaged record") and way not in WITH_DAMAGED_FILES
    return (pytest.mark.matrix,) if is_left else ()


@pytest.fixture(scope="module")
def server() -> Iterator[Attempts]:
    with attempts() as started:
        yield started


@pytest.fixture(scope="module")
def undisturbed(server: Attempts, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of a run of each way, made when it is first asked for."""

    class Folders(dict[str, Path]):
        def __missing__(self, way: str) -> Path:
            folder = tmp_path_factory.mktemp(way.replace(" ", "-"))
            codes = server.run(folder, ALL_WAYS[way], attempt=1)
            assert set(codes) == {0}, (folder / "log-1").read_text()[-4000:]
            self[way] = folder
            return folder

    return Folders()


@pytest.mark.parametrize(
    ("way", "cell"),
    [
        pytest.param(way, cell, id=f"{way}-{cell[0]}", marks=marks_of(way, cell[0]))
        for way in ALL_WAYS
        for cell in CELLS
    ],
)
def test_a_killed_run_ends_as_the_undisturbed_one(
    server: Attempts,
    undisturbed: dict[str, Path],
    tmp_path: Path,
    way: str,
    cell: tuple[str, str, int, Hurt | None, set[int]],
) -> None:
    _, point, step, hurt, whole = cell
    run = ALL_WAYS[way]
    assert -9 in server.run(tmp_path, run, attempt=1, kill=f"{point}:{step}"), log(tmp_path, 1)
    if hurt is not None:
        hurt(tmp_path, STEP)
    kept = on_disk(tmp_path)
    assert set(server.run(tmp_path, run, attempt=2)) == {0}, log(tmp_path, 2)

    assert_same_run(tmp_path, undisturbed[way])
    first, second = asked(tmp_path, 1), asked(tmp_path, 2)
    assert_nothing_is_done_twice(second, kept_seeds=kept.seeds, kept_scores=kept.scored)
    resumed_at = 4 if point == "saved" else EVERY_STEPS
    everything = asked(undisturbed[way], 1)
    needed = everything.seeds[resumed_at * SAMPLES :]
    assert sorted(second.seeds) == sorted(set(needed) - kept.seeds)
    assert all(
        # in any order: colocated engines sample side by side
        set(first.seeds[start:][:SAMPLES]) <= set(everything.seeds[start:][:SAMPLES])
        for start in range(0, len(first.seeds), SAMPLES)
    )
    assert {**first.scored, **second.scored} == everything.scored
    of_step = {number: everything.seeds[number * SAMPLES :][:SAMPLES] for number in range(STEPS)}
    num_kept = {number: len(kept.seeds.intersection(of_step[number])) for number in range(resumed_at, STEPS)}
    assert {number for number in num_kept if num_kept[number] == SAMPLES} >= whole
    assert second.synced == [number for number in num_kept if num_kept[number] < SAMPLES]
    records = [record for record in all_records(tmp_path) if record.attempt == 2]
    assert {record.step - 1: record.values["journal/replayed_samples"] for record in records} == num_kept


def test_samples_that_were_finished_before_a_kill_in_generation_are_not_asked_for_again(
    server: Attempts, tmp_path: Path
) -> None:
    run = WAYS["DDP 1"]
    server.run(tmp_path, run, attempt=1, kill=f"generation:{STEP}")
    assert len(asked(tmp_path, 1).seeds) == STEP * SAMPLES + NUM_IN_TIME
    server.run(tmp_path, run, attempt=2)
    assert len(asked(tmp_path, 2).seeds) == SAMPLES - NUM_IN_TIME + SAMPLES * (STEPS - STEP - 1)
    assert f"step {STEP + 1}: replayed {NUM_IN_TIME} samples of {SAMPLES}" in log(tmp_path, 2)


def test_a_run_that_is_killed_in_every_attempt_gets_to_its_end(
    server: Attempts, undisturbed: dict[str, Path], tmp_path: Path
) -> None:
    run = WAYS["DDP 1"]
    kills = ["generation:0", "reward:0", "generated:1", "saving:2", "generation:3", "reward:3", "saving:4"]
    kept = on_disk(tmp_path)
    for attempt, kill in enumerate([*kills, ""], start=1):
        code = -9 if kill else 0
        assert server.run(tmp_path, run, attempt=attempt, kill=kill) == [code], (kill, log(tmp_path, attempt))
        now = asked(tmp_path, attempt)
        assert_nothing_is_done_twice(now, kept_seeds=kept.seeds, kept_scores=kept.scored)
        kept = on_disk(tmp_path)
    assert_same_run(tmp_path, undisturbed["DDP 1"])


ON_TWO_RANKS = pytest.mark.parametrize("strategy", ["DDP", "FSDP2", "ZeRO2"])
TURNS = {"sampling": {"rolloutFunction": {"function": "scripted_rewards:turns"}}}


@ON_TWO_RANKS
def test_a_run_of_several_turns_that_is_killed_between_them_ends_as_the_undisturbed_one(
    server: Attempts, tmp_path: Path, strategy: str
) -> None:
    run = killable_job(num_ranks=2, strategy=strategy, **TURNS)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert set(server.run(whole, run, attempt=1)) == {0}, log(whole, 1)
    assert -9 in server.run(killed, run, attempt=1, kill=f"turn:{STEP}"), log(killed, 1)
    kept = on_disk(killed)
    assert set(server.run(killed, run, attempt=2)) == {0}, log(killed, 2)
    assert_same_run(killed, whole)
    everything, second = asked(whole, 1), asked(killed, 2)
    num_turns = SAMPLES + SAMPLES // 2
    assert len(set(everything.seeds)) == STEPS * num_turns
    # half of the step that was killed had ended after one turn
    assert len(second.seeds) == num_turns - SAMPLES // 2 + num_turns * (STEPS - STEP - 1)
    assert not kept.seeds.intersection(second.seeds)
    lengths = [record["completions/mean_length"] for record in values(killed)]
    assert all(1 < length <= 2.5 for length in lengths)


DYNAMIC = {"algorithm": {"dynamicSampling": {"maxRounds": 3}, "kl": None}}


@ON_TWO_RANKS
def test_a_run_that_is_killed_while_it_samples_in_place_of_dropped_groups_ends_as_the_undisturbed_one(
    server: Attempts, tmp_path: Path, strategy: str
) -> None:
    run = killable_job(num_ranks=2, strategy=strategy, **DYNAMIC)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert set(server.run(whole, run, attempt=1)) == {0}, log(whole, 1)
    rounds = {record.step - 1: record.values["dynamic_sampling/rounds"] for record in all_records(whole)}
    step = max(number for number, count in rounds.items() if count > 1)
    assert -9 in server.run(killed, run, attempt=1, kill=f"second round:{step}"), log(killed, 1)
    kept = on_disk(killed)
    assert set(server.run(killed, run, attempt=2)) == {0}, log(killed, 2)
    assert_same_run(killed, whole)
    assert not kept.seeds.intersection(asked(killed, 2).seeds)
    # the first round of the step that was killed is replayed with its rewards, and one sample of the second
    replayed = {record.step - 1: record.values["journal/replayed_samples"] for record in all_records(killed)}
    assert replayed[step] == SAMPLES + 1


SCHEDULE = {"optimizer": {"learningRate": 1e-3, "schedule": "linear", "warmupSteps": 1}}
# 2 prompts a step, of 16: 4.375 steps are 5
EPOCHS = {"algorithm": {"steps": None, "epochs": 8.75 / 16, **SCHEDULE}}


@ON_TWO_RANKS
def test_a_run_of_epochs_that_is_killed_ends_as_the_one_of_as_many_steps(
    server: Attempts, tmp_path: Path, strategy: str
) -> None:
    of_epochs = killable_job(num_ranks=2, strategy=strategy, **EPOCHS)
    of_steps = killable_job(num_ranks=2, strategy=strategy, algorithm=SCHEDULE)
    assert of_epochs.total_steps == 0
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert set(server.run(whole, of_steps, attempt=1)) == {0}, log(whole, 1)
    assert -9 in server.run(killed, of_epochs, attempt=1, kill=f"scored:{STEP}"), log(killed, 1)
    assert set(server.run(killed, of_epochs, attempt=2)) == {0}, log(killed, 2)
    assert_same_run(killed, whole)


def test_the_journal_keeps_only_what_is_newer_than_the_checkpoint(
    undisturbed: dict[str, Path],
) -> None:
    folder = undisturbed["DDP 1"] / "output" / "journal"
    assert not list(folder.glob("step-*"))


def log(folder: Path, attempt: int) -> str:
    return (folder / f"log-{attempt}").read_text(errors="replace")[-6000:]


def assert_nothing_is_done_twice(second: Asked, *, kept_seeds: set[int], kept_scores: set[int]) -> None:
    assert not kept_seeds.intersection(second.seeds)
    assert not kept_scores.intersection(second.scored)


def assert_same_run(folder: Path, other: Path) -> None:
    """Digests of every step, also of those that were trained twice, metrics, prompts, exported weights."""
    assert values(folder) == values(other)
    expected = {record.step: record.values[CHECKSUM] for record in all_records(other)}
    found = [(record.step, record.values[CHECKSUM]) for record in all_records(folder)]
    assert [(step, expected[step]) for step, _ in found] == found
    assert len(set(expected.values())) == STEPS
    assert not any(record.values.get("journal/digest_differs") for record in all_records(folder))
    mine, others = policy(folder), policy(other)
    assert mine.keys() == others.keys()
    assert all(torch.equal(mine[name], others[name]) for name in mine)
    assert last_state(folder) == last_state(other)
