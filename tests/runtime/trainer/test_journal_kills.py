"""kill -9 at every point of a step, over a scripted engine: the next attempt does what is left, and its
weights are those of a run that nobody disturbed. In mode Colocated: test_colocated_journal_kills.py; on vLLM:
test_journal_on_engines.py."""

from pathlib import Path
from typing import Any

import pytest
from kill_cells import (
    AGENTS,
    FAILING_AGENTS,
    STEP,
    TURNS,
    WAYS,
    assert_nothing_is_done_twice,
    assert_same_run,
    cells,
    kill_and_go_on,
    log,
)
from killed_runs import (
    SAMPLES,
    STEPS,
    all_records,
    asked,
    given_up_on_disk,
    killable_job,
    newest_checkpoint,
    noted,
    on_disk,
    run_attempt,
    values,
)
from scripted_rank import NUM_IN_TIME

from grpo_runtime.data.seeds import turn_seed

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(("way", "cell"), cells(is_colocated=False))
def test_a_killed_run_ends_as_the_undisturbed_one(
    undisturbed: dict[str, Path], tmp_path: Path, way: str, cell: Any
) -> None:
    kill_and_go_on(undisturbed, tmp_path, way=way, cell=cell)


def test_samples_that_were_finished_before_a_kill_in_generation_are_not_asked_for_again(
    tmp_path: Path,
) -> None:
    run = WAYS["DDP 1"]
    run_attempt(tmp_path, run, attempt=1, kill=f"generation:{STEP}")
    assert len(asked(tmp_path, 1).seeds) == STEP * SAMPLES + NUM_IN_TIME
    run_attempt(tmp_path, run, attempt=2)
    assert len(asked(tmp_path, 2).seeds) == SAMPLES - NUM_IN_TIME + SAMPLES * (STEPS - STEP - 1)
    assert f"step {STEP + 1}: replayed {NUM_IN_TIME} samples of {SAMPLES}" in log(tmp_path, 2)


def test_a_run_that_is_killed_in_every_attempt_gets_to_its_end(
    undisturbed: dict[str, Path], tmp_path: Path
) -> None:
    run = WAYS["DDP 1"]
    # a kill in a save comes last: the step after it is sampled meanwhile, and would be replayed
    kills = ["generation:0", "reward:0", "generated:1", "generation:3", "reward:3", "saving:4"]
    kept = on_disk(tmp_path)
    for attempt, kill in enumerate([*kills, ""], start=1):
        codes = run_attempt(tmp_path, run, attempt=attempt, kill=kill)
        assert codes == [-9 if kill else 0], (kill, log(tmp_path, attempt))
        now = asked(tmp_path, attempt)
        assert_nothing_is_done_twice(now, kept_seeds=kept.seeds, kept_scores=kept.scored)
        kept = on_disk(tmp_path)
    assert_same_run(tmp_path, undisturbed["DDP 1"])


def on_two_ranks(*, selected: str | None) -> pytest.MarkDecorator:
    """Under each strategy, of which `make test` has one, or none."""
    return pytest.mark.parametrize(
        "strategy",
        [
            pytest.param(strategy, marks=() if strategy == selected else pytest.mark.matrix)
            for strategy in ("DDP", "FSDP2", "ZeRO2")
        ],
    )


@on_two_ranks(selected=None)
def test_a_run_of_several_turns_that_is_killed_between_them_ends_as_the_undisturbed_one(
    tmp_path: Path, strategy: str
) -> None:
    run = killable_job(num_ranks=2, strategy=strategy, **TURNS)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert set(run_attempt(whole, run, attempt=1)) == {0}, log(whole, 1)
    assert -9 in run_attempt(killed, run, attempt=1, kill=f"turn:{STEP}"), log(killed, 1)
    kept = on_disk(killed)
    assert set(run_attempt(killed, run, attempt=2)) == {0}, log(killed, 2)
    assert_same_run(killed, whole)
    everything, second = asked(whole, 1), asked(killed, 2)
    num_turns = SAMPLES + SAMPLES // 2
    assert len(set(everything.seeds)) == STEPS * num_turns
    # half of the step that was killed had ended after one turn
    assert len(second.seeds) == num_turns - SAMPLES // 2 + num_turns * (STEPS - STEP - 1)
    assert not kept.seeds.intersection(second.seeds)
    lengths = [record["completions/mean_length"] for record in values(killed)]
    assert all(1 < length <= 2.5 for length in lengths)


IN_EPISODES = {
    "in a call": "turn",
    "between calls": "between calls",
    "returned": "returned",
    "in scoring": "reward",
}


@pytest.mark.parametrize(
    ("moment", "num_ranks", "strategy"),
    [
        pytest.param(
            moment, *way, marks=() if (moment, way) == ("between calls", (1, "DDP")) else pytest.mark.matrix
        )
        for moment in IN_EPISODES
        for way in ((1, "DDP"), (2, "FSDP2"))
    ],
)
def test_a_run_of_agents_that_is_killed_within_an_episode_ends_as_the_undisturbed_one(
    tmp_path: Path, moment: str, num_ranks: int, strategy: str
) -> None:
    run = killable_job(num_ranks=num_ranks, strategy=strategy, **AGENTS)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert set(run_attempt(whole, run, attempt=1)) == {0}, log(whole, 1)
    assert -9 in run_attempt(killed, run, attempt=1, kill=f"{IN_EPISODES[moment]}:{STEP}"), log(killed, 1)
    kept, resumed_at = on_disk(killed), newest_checkpoint(killed)
    assert set(run_attempt(killed, run, attempt=2)) == {0}, log(killed, 2)
    assert_same_run(killed, whole)
    everything, first, second = asked(whole, 1), asked(killed, 1), asked(killed, 2)
    num_calls = SAMPLES + SAMPLES // 2
    assert len(set(everything.seeds)) == len(everything.seeds) == STEPS * num_calls
    of_steps = [set(everything.seeds[step * num_calls :][:num_calls]) for step in range(STEPS)]
    assert kept.seeds & of_steps[STEP], "no finished episode of the step was on disk"
    # an episode is known by the seed of its first call; none that was finished makes a call again
    finished = kept.seeds | {turn_seed(seed, turn=1) for seed in kept.seeds}
    expected = set().union(*of_steps[resumed_at:]) - finished
    assert set(second.seeds) == expected and len(second.seeds) == len(expected)
    assert set(first.seeds) <= set().union(*of_steps[: STEP + 1])


@pytest.mark.matrix
def test_what_a_killed_run_had_given_up_is_given_up_and_it_ends_as_the_undisturbed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the step that is killed a group has three of four episodes, and another one is left out. At the
    first kill, in a reward call, some failures are on disk; at the second, after the update, all are."""
    monkeypatch.setenv("FAILS_IN", str(STEP))
    monkeypatch.setenv("LEFT_OUT", "2")
    run = killable_job(num_ranks=1, strategy="DDP", **FAILING_AGENTS)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert set(run_attempt(whole, run, attempt=1)) == {0}, log(whole, 1)
    of_step = values(whole)[STEP]
    assert of_step["agents/given_up_episodes"] >= 4
    assert of_step["agents/left_out_groups"] >= 1
    given_up: list[set[int]] = [set()]
    for attempt, kill in enumerate((f"reward:{STEP}", f"trained:{STEP}", ""), start=1):
        finished = on_disk(killed).seeds
        assert run_attempt(killed, run, attempt=attempt, kill=kill) == [-9 if kill else 0], log(
            killed, attempt
        )
        tried = {line["tried"] for line in noted(killed, attempt) if "tried" in line}
        assert not tried & (given_up[-1] | finished)
        given_up.append(given_up_on_disk(killed))
    assert 0 < len(given_up[1]) <= len(given_up[2]) == of_step["agents/given_up_episodes"]
    assert "its completion begins anew" not in log(killed, 3)
    assert_same_run(killed, whole)


DYNAMIC = {"algorithm": {"dynamicSampling": {"maxRounds": 3}, "kl": None}}


@on_two_ranks(selected="FSDP2")
def test_a_run_that_is_killed_while_it_samples_in_place_of_filtered_groups_ends_as_the_undisturbed_one(
    tmp_path: Path, strategy: str
) -> None:
    run = killable_job(num_ranks=2, strategy=strategy, **DYNAMIC)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert set(run_attempt(whole, run, attempt=1)) == {0}, log(whole, 1)
    rounds = {record.step - 1: record.values["dynamic_sampling/rounds"] for record in all_records(whole)}
    step = max(number for number, count in rounds.items() if count > 1)
    assert -9 in run_attempt(killed, run, attempt=1, kill=f"second round:{step}"), log(killed, 1)
    kept = on_disk(killed)
    assert set(run_attempt(killed, run, attempt=2)) == {0}, log(killed, 2)
    assert_same_run(killed, whole)
    assert not kept.seeds.intersection(asked(killed, 2).seeds)
    # the first round of the step that was killed is replayed with its rewards, and one sample of the second
    replayed = {record.step - 1: record.values["journal/replayed_samples"] for record in all_records(killed)}
    assert replayed[step] == SAMPLES + 1


SCHEDULE = {"optimizer": {"learningRate": 1e-3, "schedule": "linear", "warmupSteps": 1}}
# 2 prompts a step, of 16: 4.375 steps are 5
EPOCHS = {"algorithm": {"steps": None, "epochs": 8.75 / 16, **SCHEDULE}}


@on_two_ranks(selected="ZeRO2")
def test_a_run_of_epochs_that_is_killed_ends_as_the_one_of_as_many_steps(
    tmp_path: Path, strategy: str
) -> None:
    of_epochs = killable_job(num_ranks=2, strategy=strategy, **EPOCHS)
    of_steps = killable_job(num_ranks=2, strategy=strategy, algorithm=SCHEDULE)
    assert of_epochs.total_steps == 0
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert set(run_attempt(whole, of_steps, attempt=1)) == {0}, log(whole, 1)
    assert -9 in run_attempt(killed, of_epochs, attempt=1, kill=f"scored:{STEP}"), log(killed, 1)
    assert set(run_attempt(killed, of_epochs, attempt=2)) == {0}, log(killed, 2)
    assert_same_run(killed, whole)


def test_the_journal_keeps_only_what_is_newer_than_the_checkpoint(
    undisturbed: dict[str, Path],
) -> None:
    folder = undisturbed["DDP 1"] / "output" / "journal"
    assert not list(folder.glob("step-*"))
