"""Completions as tables, and as text for the terminal."""

import dataclasses
from pathlib import Path

import pytest
from datasets import load_dataset
from kept_samples import episode, given_up, keep, sample

from grpo_runtime.cli import main
from grpo_runtime.errors import UserError
from grpo_runtime.report.samples import (
    COMPLETIONS_FOLDER,
    EVALUATIONS_FOLDER,
    SampleTables,
    read_samples,
    steps_with_samples,
)


def test_a_table_gives_back_what_was_written_and_datasets_reads_it(tmp_path: Path) -> None:
    tables = SampleTables(tmp_path, start_step=0)
    of_an_agent = dataclasses.replace(sample(None), episode=episode('"β"\n', state={"board": [None, 1]}))
    written = [given_up("it raised"), sample(1.0), of_an_agent, sample(0.25, group=1, completion='β\n"x"')]
    keep(tables, 2, *written)
    keep(tables, 3)
    assert steps_with_samples(tmp_path) == [2]
    assert read_samples(tmp_path, step=2) == written
    files = str(tmp_path / "completions" / "*.parquet")
    table = load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
    assert table["reward"] == [None, 1.0, None, 0.25]
    assert table["rewards/match"] == [None, 1.0, None, 0.25]
    assert (table["step"], table["attempt"]) == ([2] * 4, [1] * 4)


def test_a_folder_is_read_though_everything_was_given_up_in_its_first_table(tmp_path: Path) -> None:
    tables = SampleTables(tmp_path, start_step=0)
    keep(tables, 1, given_up("it raised"))
    keep(tables, 2, sample(1.0))
    files = str(tmp_path / "completions" / "*.parquet")
    table = load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
    assert table["reward"] == table["rewards/match"] == [None, 1.0]
    assert table["advantage"] == [None, 0.5]


def test_an_attempt_removes_what_it_trains_again(tmp_path: Path) -> None:
    first = SampleTables(tmp_path, start_step=0)
    for step in (10, 20, 30):
        keep(first, step, sample(0.0), evaluated=[sample(0.0)])
    SampleTables(tmp_path, start_step=20)
    for folder in (COMPLETIONS_FOLDER, EVALUATIONS_FOLDER):
        assert steps_with_samples(tmp_path, folder=folder) == [10, 20]


def test_a_torn_table_is_named(tmp_path: Path) -> None:
    keep(SampleTables(tmp_path, start_step=0), 1, sample(0.0))
    path = tmp_path / "completions" / "step-000001.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match=r"step-000001\.parquet cannot be read"):
        read_samples(tmp_path, step=1)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Two steps of three groups, whose rewards are 0 and 0, 0 and 1, 1 and 1."""
    tables = SampleTables(tmp_path, start_step=0)
    rewards = [(0.0, 0.0), (0.0, 1.0), (1.0, 1.0)]
    samples = [sample(reward, group=group) for group, pair in enumerate(rewards) for reward in pair]
    keep(tables, 10, *samples)
    keep(tables, 20, *(dataclasses.replace(each, completion=f"new {each.reward}") for each in samples))
    return tmp_path


@pytest.mark.parametrize(
    ("order", "prompts"),
    [("step", [1, 2, 3]), ("best", [3, 2, 1]), ("worst", [1, 2, 3]), ("mixed", [2, 1, 3])],
)
def test_groups_come_in_the_order_that_was_asked_for(
    kept: Path, order: str, prompts: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["samples", str(kept), "--order", order]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("===")] == [
        f"=== prompt {number}" for number in prompts
    ]


def test_the_newest_step_is_shown_with_every_reward(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["samples", str(kept), "--groups", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[-6:] == [
        "=== prompt 2",
        "<s>colour 1?",
        "--- reward 0 (match 0, length none), advantage +0.5, 3 tokens, cut at maxTokens",
        "new 0.0",
        "--- reward 1 (match 1, length none), advantage +0.5, 3 tokens, cut at maxTokens",
        "new 1.0",
    ]


def test_what_was_given_up_is_counted_and_its_groups_come_first_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failures = [given_up("it raised", group=1), *[given_up("it wrote:\n--- reward 1\x1b[2J", group=2)] * 2]
    keep(SampleTables(tmp_path, start_step=0), 10, sample(1.0), sample(0.5, group=1), *failures)
    assert main(["samples", str(tmp_path), "--order", "failed", "--groups", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "step 10: 2 of 3 groups, 3 completions given up (--order failed begins with their groups)",
        *("", "=== prompt 3", "<s>colour 2?"),
        *("--- given up:", "  it wrote:", "  --- reward 1�[2J") * 2,
        *("", "=== prompt 2", "<s>colour 1?"),
        "--- reward 0.5 (match 0.5, length none), advantage +0.5, 3 tokens, cut at maxTokens",
        "blue",
        *("--- given up:", "  it raised"),
    ]
    assert main(["samples", str(tmp_path), "--order", "worst"]) == 0
    prompts = [line for line in capsys.readouterr().out.splitlines() if line.startswith("===")]
    assert prompts == ["=== prompt 2", "=== prompt 1", "=== prompt 3"]


def test_an_evaluation_is_shown_when_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated = dataclasses.replace(
        sample(0.5, completion="evaluated"), advantage=None, segments="0-1 rollout-0, 1-3 rollout-1"
    )
    keep(SampleTables(tmp_path, start_step=0), 20, sample(0.0), evaluated=[evaluated])
    assert main(["samples", str(tmp_path), "--eval"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        *("evaluation after step 20: 1 of 1 groups", "", "=== prompt 1", "<s>colour 0?"),
        "--- reward 0.5 (match 0.5, length none), 3 tokens, handed over (0-1 rollout-0, 1-3 rollout-1)",
        "evaluated",
    ]
    (tmp_path / EVALUATIONS_FOLDER / "step-000020.parquet").unlink()
    assert main(["samples", str(tmp_path), "--eval"]) == 40
    assert "those of each evaluation of dataset.eval are kept" in capsys.readouterr().err


def test_a_step_that_was_not_kept_is_refused_with_those_that_were(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["samples", str(kept), "--step", "11"]) == 40
    assert "of step 11 were not kept; those of these steps were: 10, 20" in capsys.readouterr().err


def test_a_folder_without_completions_says_which_field_keeps_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["samples", str(tmp_path)]) == 40
    assert "report.samplesEverySteps" in capsys.readouterr().err


def test_what_a_model_wrote_cannot_drive_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(SampleTables(tmp_path, start_step=0), 1, sample(0.0, completion="a\x1b[2Jb\rc\td\ne"))
    assert main(["samples", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["a�[2Jb�c\td", "e"]
