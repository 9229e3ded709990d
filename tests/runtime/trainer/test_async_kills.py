"""kill -9 at every point of asynchronous training, over a scripted engine that samples while the policy is
trained. Which groups a step is trained on is a matter of chance: a killed run is held to what it had on disk,
and not to another run. Synchronous training: test_journal_kills.py; any moment, without ranks:
test_async_stream.py."""

import itertools
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from allpairspy import AllPairs
from kill_cells import AGENTS, FAILING_AGENTS, RANKS, STEP, STRATEGIES, TURNS, log, way_called
from killed_runs import (
    CHECKSUM,
    SAMPLES,
    AheadOnDisk,
    Hurt,
    ahead_on_disk,
    all_records,
    damage,
    exported_checksum,
    killable_job,
    last_state,
    newest_checkpoint,
    noted,
    run_attempt,
    tear,
)
from scripted_rank import NUM_IN_TIME

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.report.metrics_file import read_metrics
from grpo_runtime.rollouts.async_stream import STALENESS
from grpo_runtime.rollouts.journal.journal import DIFFERS, REPLAYED
from grpo_runtime.rollouts.journal.reader import step_folders

pytestmark = pytest.mark.processes

STEPS, PROMPTS = 6, 2
GROUP = SAMPLES // PROMPTS
NUM_GROUPS = STEPS * PROMPTS


def async_job(
    *, num_ranks: int = 1, strategy: str | None = None, max_staleness: int = 1, **spec: Any
) -> RunConfig:
    algorithm = {"steps": STEPS, "numIterations": 1, **spec.pop("algorithm", {})}
    asynchronous = {"maxStaleness": max_staleness, **spec.pop("asynchronous", {})}
    return killable_job(
        num_ranks=num_ranks, strategy=strategy, algorithm=algorithm, **{"async": asynchronous}, **spec
    )


def tear_newest(folder: Path, step: int) -> None:
    """Tear the last record of all."""
    tear(folder, max(step_folders(folder / "output" / "journal")))


@dataclass(frozen=True)
class Moment:
    """A point of a kill, and what is done to the journal afterwards."""

    kill: str
    hurt: Hurt | None = None
    trains_again: bool = True
    """Whether a step was surely trained and reported, which is newer than a checkpoint of two."""
    steps_on_disk: int = STEP
    """So many steps are surely composed on disk."""


MOMENTS = {
    "generation": Moment(f"generation:{STEP}"),
    # groups that were scored before are those of so many steps
    "reward": Moment(f"reward call:{STEP * PROMPTS}", trains_again=False, steps_on_disk=1),
    "update in flight": Moment(f"update in flight:{STEP}"),
    "composed": Moment(f"scored:{STEP}", steps_on_disk=STEP + 1),
    "saving": Moment(f"saving:{STEP + 1}", steps_on_disk=STEP + 1),
    "training": Moment(f"training:{STEP}", steps_on_disk=STEP + 1),
    "trained": Moment(f"trained:{STEP}", steps_on_disk=STEP + 1),
    "between steps": Moment(f"between steps:{STEP}"),
    "saved": Moment(f"saved:{STEP + 1}", steps_on_disk=STEP + 1),
    "torn record": Moment(f"generation:{STEP}", tear_newest),
    "damaged record": Moment(f"scored:{STEP}", damage),
    "generated": Moment(f"generated:{STEP}"),
    "between updates": Moment(f"between updates:{STEP}", steps_on_disk=STEP + 1),
}
"""Killed in the fourth step, after a checkpoint of two, or in the save after it."""
MAX_STALENESS = (1, 2)
WAYS = list(itertools.product(MAX_STALENESS, STRATEGIES, RANKS))
_PAIRS = [tuple(way) for way in AllPairs([MAX_STALENESS, STRATEGIES, RANKS])]
_MORE = itertools.cycle(way for way in _PAIRS if way[-1] == 1)
_ONLY_IN_MATRIX = ("generated", "between updates")
SELECTED = {
    (moment, way)
    for moment, way in zip(MOMENTS, itertools.chain(_PAIRS, _MORE), strict=False)
    if moment not in _ONLY_IN_MATRIX
}
"""What `make test` has: moments once, and every pair of bound, strategy and number of ranks."""


@pytest.mark.parametrize(
    ("way", "moment"),
    [
        pytest.param(
            way,
            moment,
            id=f"{way_called('', *way[1:])} staleness {way[0]}-{moment}",
            marks=() if (moment, way) in SELECTED else pytest.mark.matrix,
        )
        for way in WAYS
        for moment in MOMENTS
    ],
)
def test_a_killed_run_trains_on_the_groups_that_it_had_on_disk(
    tmp_path: Path, way: tuple[int, str, int], moment: str
) -> None:
    max_staleness, strategy, num_ranks = way
    run = async_job(num_ranks=num_ranks, strategy=strategy, max_staleness=max_staleness)
    found = MOMENTS[moment]
    assert -9 in run_attempt(tmp_path, run, attempt=1, kill=found.kill), log(tmp_path, 1)
    if found.hurt is not None:
        found.hurt(tmp_path, STEP)
    # what was recorded beyond a step that is done anew may be of other weights
    kept = ahead_on_disk(tmp_path, last_step=STEP if found.hurt is damage else None)
    resumed_at = newest_checkpoint(tmp_path)
    assert resumed_at == STEP + 1 or moment != "saved"
    assert set(run_attempt(tmp_path, run, attempt=2)) == {0}, log(tmp_path, 2)

    assert_is_one_run(tmp_path, run)
    assert_on_disk_is_not_done_again(tmp_path, attempt=2, kept=kept)
    assert max(kept.composed) >= found.steps_on_disk - 1
    assert_composed_steps_are_replayed(tmp_path, attempt=2, kept=kept, resumed_at=resumed_at)
    assert steps_trained_again(tmp_path) or resumed_at > STEP or not found.trains_again
    needed = set(range(NUM_GROUPS)) - used_before(tmp_path, resumed_at)
    num_kept = sum(group in needed for group in kept.samples.values())
    assert len(seeds(tmp_path, 2)) == GROUP * len(needed) - num_kept
    assert num_reward_calls(tmp_path, 2) == len(needed - kept.scored)


def test_a_run_that_is_killed_in_every_attempt_gets_to_its_end(tmp_path: Path) -> None:
    run = async_job(max_staleness=2)
    kills = [
        *("generation:0", "reward call:0", "between updates:1"),
        *("generation:2", "update in flight:4", f"saving:{STEPS}"),
    ]
    kept = ahead_on_disk(tmp_path)
    for attempt, kill in enumerate([*kills, ""], start=1):
        resumed_at = newest_checkpoint(tmp_path)
        codes = run_attempt(tmp_path, run, attempt=attempt, kill=kill)
        assert codes == [-9 if kill else 0], (kill, log(tmp_path, attempt))
        assert_on_disk_is_not_done_again(tmp_path, attempt=attempt, kept=kept)
        assert_composed_steps_are_replayed(tmp_path, attempt=attempt, kept=kept, resumed_at=resumed_at)
        kept = ahead_on_disk(tmp_path)
        if attempt == 1:
            # of several groups, none of which is whole
            assert len(kept.samples) == NUM_IN_TIME > max(Counter(kept.samples.values()).values())
    assert_is_one_run(tmp_path, run)


DROP = {"asynchronous": {"stale": "Drop"}}
DYNAMIC = {
    "function": "scripted_rewards:same_for_some",
    "algorithm": {"dynamicSampling": {"maxRounds": 4}, "kl": None},
}


@dataclass(frozen=True)
class Special:
    """What some runs have, with a kill in one. `ended` are the groups that it is about."""

    spec: dict[str, Any]
    ended: str
    strategy: str
    num_ranks: int
    kill: str
    trains_again: bool = True
    """As of a `Moment`."""


SPECIALS = {
    "dropped": Special(DROP, "dropped", "DDP", 1, f"trained:{STEP}"),
    "filtered": Special(DYNAMIC, "filtered", "DDP", 1, f"between steps:{STEP}"),
    "turns": Special(TURNS, "trained", "DDP", 1, f"turn:{STEP}"),
}
MORE_SPECIALS = {
    "dropped, in generation": Special(DROP, "dropped", "ZeRO2", 2, f"generation:{STEP}"),
    "filtered, in generation": Special(DYNAMIC, "filtered", "FSDP2", 2, f"generation:{STEP}"),
    "turns, trained": Special(TURNS, "trained", "FSDP2", 2, f"trained:{STEP}"),
    "agents, in a call": Special(AGENTS, "trained", "DDP", 1, f"turn:{STEP}"),
    "agents, between calls": Special(AGENTS, "trained", "ZeRO2", 2, f"between calls:{STEP}"),
    "agents, returned": Special(AGENTS, "trained", "DDP", 1, f"returned:{STEP}"),
    "agents, in scoring": Special(
        AGENTS, "trained", "FSDP2", 2, f"reward call:{STEP * PROMPTS}", trains_again=False
    ),
    "agents, trained": Special(AGENTS, "trained", "DDP", 1, f"trained:{STEP}"),
    "agents that fail": Special(FAILING_AGENTS, "failed", "DDP", 1, f"trained:{STEP}"),
}


@pytest.mark.parametrize(
    "special",
    [
        *(pytest.param(special, id=name) for name, special in SPECIALS.items()),
        *(
            pytest.param(special, id=name, marks=pytest.mark.matrix)
            for name, special in MORE_SPECIALS.items()
        ),
    ],
)
def test_a_killed_run_leaves_out_the_groups_that_it_had_left_out(
    tmp_path: Path, special: Special, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS_IN", "")
    monkeypatch.setenv("LEFT_OUT", "0")
    run = async_job(num_ranks=special.num_ranks, strategy=special.strategy, **special.spec)
    assert -9 in run_attempt(tmp_path, run, attempt=1, kill=special.kill), log(tmp_path, 1)
    kept, resumed_at = ahead_on_disk(tmp_path), newest_checkpoint(tmp_path)
    composed = ahead_on_disk(tmp_path, with_forgotten=True).composed
    assert any(getattr(record, special.ended) for record in composed.values())
    assert set(run_attempt(tmp_path, run, attempt=2)) == {0}, log(tmp_path, 2)
    assert_is_one_run(tmp_path, run)
    if special.ended != "filtered":
        # before groups are filtered once more, those that were sampled in their places may be too many of
        # their age
        assert_on_disk_is_not_done_again(tmp_path, attempt=2, kept=kept)
    assert_composed_steps_are_replayed(tmp_path, attempt=2, kept=kept, resumed_at=resumed_at)
    tried = {line["tried"] for line in noted(tmp_path, 2) if "tried" in line}
    assert not tried & kept.given_up.keys()
    assert bool(kept.given_up) == (special.ended == "failed")
    assert steps_trained_again(tmp_path) or resumed_at > STEP or not special.trains_again


@pytest.mark.parametrize(
    ("num_ranks", "strategy"),
    [(1, "DDP"), *(pytest.param(2, strategy, marks=pytest.mark.matrix) for strategy in ("FSDP2", "ZeRO2"))],
)
def test_a_killed_run_goes_on_from_what_was_handed_over(
    tmp_path: Path, num_ranks: int, strategy: str
) -> None:
    asynchronous = {"pauseMode": "Abort", "journalSegments": True}
    run = async_job(num_ranks=num_ranks, strategy=strategy, max_staleness=2, asynchronous=asynchronous)
    assert -9 in run_attempt(tmp_path, run, attempt=1, kill=f"handed over:{STEP}"), log(tmp_path, 1)
    kept, resumed_at = ahead_on_disk(tmp_path), newest_checkpoint(tmp_path)
    assert set(run_attempt(tmp_path, run, attempt=2)) == {0}, log(tmp_path, 2)
    assert_is_one_run(tmp_path, run)
    assert_on_disk_is_not_done_again(tmp_path, attempt=2, kept=kept)
    assert_composed_steps_are_replayed(tmp_path, attempt=2, kept=kept, resumed_at=resumed_at)
    went_on = {line["seed"]: line["num_so_far"] for line in noted(tmp_path, 2) if line.get("num_so_far")}
    assert went_on == kept.unfinished != {}


def seeds(folder: Path, attempt: int) -> list[int]:
    """What an attempt has sampled."""
    return [line["seed"] for line in noted(folder, attempt) if "seed" in line]


def num_reward_calls(folder: Path, attempt: int) -> int:
    """One for each group."""
    return sum("scored" in line for line in noted(folder, attempt))


def used_before(folder: Path, step: int) -> set[int]:
    """The groups that have ended with steps before `step`."""
    composed = ahead_on_disk(folder, with_forgotten=True).composed
    return {ordinal for before in range(step) for ordinal in composed[before].ordinals}


def steps_trained_again(folder: Path) -> set[int]:
    """Those that more than one attempt has trained and reported."""
    num_reports = Counter(record.step - 1 for record in all_records(folder))
    return {step for step, num in num_reports.items() if num > 1}


def assert_on_disk_is_not_done_again(folder: Path, *, attempt: int, kept: AheadOnDisk) -> None:
    asked = seeds(folder, attempt)
    assert len(set(asked)) == len(asked)
    assert not kept.samples.keys() & set(asked)


def assert_composed_steps_are_replayed(
    folder: Path, *, attempt: int, kept: AheadOnDisk, resumed_at: int
) -> None:
    """Those since the checkpoint: on the same groups, all of whose samples come from the journal."""
    composed = ahead_on_disk(folder, with_forgotten=True).composed
    reported = {record.step - 1: record.values for record in all_records(folder) if record.attempt == attempt}
    for step, record in kept.composed.items():
        assert composed[step] == record
        if step >= resumed_at and step in reported:
            groups = (*record.trained, *record.filtered)
            num_given_up = sum(group in groups for group in kept.given_up.values())
            assert reported[step][REPLAYED] == GROUP * len(groups) - num_given_up


def assert_is_one_run(folder: Path, run: RunConfig) -> None:
    """What a reader sees of all attempts together: each step once, each prompt once, no step with two
    digests, none beyond the bound, and the weights of the last digest."""
    asynchronous, is_filtered = run.asynchronous, run.algorithm.dynamic_sampling is not None
    assert asynchronous is not None
    records = read_metrics(folder / "output" / "metrics.jsonl")
    assert [record.step for record in records] == list(range(1, STEPS + 1))
    num_tokens = [record.values["num_tokens"] for record in records]
    assert all(one < other for one, other in itertools.pairwise(num_tokens))
    assert {record.values[f"{STALENESS}/max"] for record in records} <= set(
        range(asynchronous.max_staleness + 1)
    )
    assert max(record.values[f"{STALENESS}/max"] for record in records) > 0

    checksums = {(record.step, record.values[CHECKSUM]) for record in all_records(folder)}
    assert len(checksums) == len({checksum for _, checksum in checksums}) == STEPS
    assert not any(record.values.get(DIFFERS) for record in all_records(folder))
    assert exported_checksum(folder, run) == records[-1].values[CHECKSUM]

    composed = ahead_on_disk(folder, with_forgotten=True).composed
    assert sorted(composed) == list(range(STEPS))
    ordinals = sorted(ordinal for record in composed.values() for ordinal in record.ordinals)
    assert ordinals == list(range(len(ordinals)))
    num_trained = sum(len(record.trained) for record in composed.values())
    assert num_trained == NUM_GROUPS or is_filtered
    is_left_out = any(record.dropped or record.filtered or record.failed for record in composed.values())
    assert len(ordinals) == NUM_GROUPS or is_left_out
    sampler = last_state(folder, steps=STEPS)["sampler"]
    assert "again" not in sampler
