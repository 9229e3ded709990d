"""The kills over a scripted engine: ways to train, moments, and what must be so after each."""

import itertools
from collections.abc import Mapping
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
    Hurt,
    all_records,
    asked,
    damage,
    killable_job,
    last_state,
    newest_checkpoint,
    on_disk,
    policy,
    run_attempt,
    tear,
    values,
)

from grpo_api.v1alpha1.spec import Mode

NO_REFERENCE: dict[str, Any] = {"algorithm": {"kl": None}}
"""ZeRO-3 does not spread one."""
ADAPTER: dict[str, Any] = {
    "model": {"source": "builtin://tiny", "lora": {"rank": 4}},
    # a reference that follows the policy is not for adapters
    "algorithm": {"kl": {"beta": 0.05}},
}
TURNS: dict[str, Any] = {"sampling": {"rolloutFunction": {"function": "scripted_rewards:turns"}}}
AGENTS: dict[str, Any] = {
    "environments": [{"name": "scripted", "function": "scripted_rewards:agent"}],
    "sampling": {"chatTemplate": "{% for message in messages %}{{ message.content }}{% endfor %}"},
}
FAILING_AGENTS: dict[str, Any] = {
    **AGENTS,
    "environments": [{"name": "scripted", "function": "scripted_rewards:failing_agent"}],
}
MODES, STRATEGIES, RANKS = ("Disaggregated", "Colocated"), ("DDP", "FSDP2", "ZeRO2"), (1, 2)


def way_called(mode: str, strategy: str, num_ranks: int) -> str:
    """The name of a way in the ids of tests."""
    return f"{'Colocated ' if mode == 'Colocated' else ''}{strategy} {num_ranks}"


WAYS = {
    way_called(mode, strategy, num_ranks): killable_job(
        mode=mode if mode == "Colocated" else None, num_ranks=num_ranks, strategy=strategy
    )
    for mode, strategy, num_ranks in itertools.product(MODES, STRATEGIES, RANKS)
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

FILES = ("torn record", "damaged record")
_MOMENTS = [name for name, *_ in CELLS if name not in FILES]
_PAIRS = (
    ("Disaggregated", "DDP", 1),
    ("Colocated", "DDP", 2),
    ("Disaggregated", "FSDP2", 2),
    ("Colocated", "FSDP2", 1),
    ("Disaggregated", "ZeRO2", 1),
    ("Colocated", "ZeRO2", 2),
)
"""Every pair of mode, strategy and number of ranks."""
SELECTED = {
    *((way_called(*way), moment) for moment, way in zip(_MOMENTS, itertools.cycle(_PAIRS), strict=False)),
    ("DDP 1", "torn record"),
    ("Colocated FSDP2 1", "damaged record"),
    ("ZeRO3 2", "scored"),
    ("shared FSDP2 2", "saving"),
    ("adapter DDP 2", "scored"),
}
"""What `make test` has: each moment once, with modes, strategies and numbers of ranks in turn, and what is
special once. `make test-matrix` has the rest."""


def cells(*, is_colocated: bool) -> list[Any]:
    """Those of one mode, as parameters of a test."""
    return [
        pytest.param(
            way,
            cell,
            id=f"{way}-{cell[0]}",
            marks=() if (way, cell[0]) in SELECTED else pytest.mark.matrix,
        )
        for way in ALL_WAYS
        for cell in CELLS
        if (ALL_WAYS[way].mode is Mode.COLOCATED) == is_colocated
    ]


def kill_and_go_on(
    undisturbed: dict[str, Path],
    folder: Path,
    *,
    way: str,
    cell: tuple[str, str, int, Hurt | None, set[int]],
) -> None:
    """Kill a run, and assert that the next attempt does what is left and ends as the undisturbed one."""
    _, point, step, hurt, whole = cell
    run = ALL_WAYS[way]
    assert -9 in run_attempt(folder, run, attempt=1, kill=f"{point}:{step}"), log(folder, 1)
    if hurt is not None:
        hurt(folder, STEP)
    kept, resumed_at = on_disk(folder), newest_checkpoint(folder)
    # one that is still being written when the kill comes does not count
    assert resumed_at == STEP + 1 if point == "saved" else resumed_at in (0, EVERY_STEPS)
    assert set(run_attempt(folder, run, attempt=2)) == {0}, log(folder, 2)

    assert_same_run(folder, undisturbed[way])
    first, second = asked(folder, 1), asked(folder, 2)
    assert_nothing_is_done_twice(second, kept_seeds=kept.seeds, kept_scores=kept.scored)
    everything = asked(undisturbed[way], 1)
    needed = everything.seeds[resumed_at * SAMPLES :]
    assert sorted(second.seeds) == sorted(set(needed) - kept.seeds)
    if run.mode is Mode.COLOCATED:
        # the engines sample side by side, so that within a step any order is right
        parts = [slice(start, start + SAMPLES) for start in range(0, len(first.seeds), SAMPLES)]
        assert all(set(first.seeds[part]) <= set(everything.seeds[part]) for part in parts)
    else:
        assert first.seeds == everything.seeds[: len(first.seeds)]
    scored = {
        number: {*first.scored.get(number, ()), *second.scored.get(number, ())} for number in range(STEPS)
    }
    assert scored == {number: set(prompts) for number, prompts in everything.scored.items()}
    of_step = {number: everything.seeds[number * SAMPLES :][:SAMPLES] for number in range(STEPS)}
    num_kept = {number: len(kept.seeds.intersection(of_step[number])) for number in range(resumed_at, STEPS)}
    assert {number for number in num_kept if num_kept[number] == SAMPLES} >= whole
    assert second.synced == [number for number in num_kept if num_kept[number] < SAMPLES]
    num_scored = {number: len(second.scored.get(number, ())) for number in num_kept}
    assert num_scored == {number: SAMPLES - kept.scored[number] for number in num_kept}
    records = [record for record in all_records(folder) if record.attempt == 2]
    assert {record.step - 1: record.values["journal/replayed_samples"] for record in records} == num_kept


def log(folder: Path, attempt: int) -> str:
    return (folder / f"log-{attempt}").read_text(errors="replace")[-6000:]


def assert_nothing_is_done_twice(
    second: Asked, *, kept_seeds: set[int], kept_scores: Mapping[int, int]
) -> None:
    assert not kept_seeds.intersection(second.seeds)
    twice = {
        step for step, prompts in second.scored.items() if len(prompts) + kept_scores.get(step, 0) > SAMPLES
    }
    assert not twice


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
