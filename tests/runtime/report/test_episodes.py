"""Episodes as people read them, in the terminal."""

import dataclasses
from pathlib import Path

import pytest
from kept_samples import episode, keep, sample

from grpo_runtime.cli import main
from grpo_runtime.report.episodes import Said
from grpo_runtime.report.samples import SampleTables


def test_what_an_agent_sends_of_a_policy_has_its_calls_of_tools_as_text() -> None:
    calls = [
        {"id": "1", "function": {"name": "add", "arguments": '{"a": 1}'}},
        {"id": "2", "function": {"name": "give_up", "arguments": {"why": "é"}}},
    ]
    sent = {"role": "assistant", "content": "Well.", "tool_calls": calls}
    assert Said.of(sent) == Said("assistant", 'Well.\nadd({"a": 1})\ngive_up({"why": "é"})')
    assert Said.of({"role": "tool", "content": "", "tool_call_id": "1"}) == Said("tool", "")


def test_an_episode_is_shown_turn_by_turn_with_what_of_it_was_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played = episode("It\x1b[2J\nis", state={"won": True}, output="asks\nends")
    shown = dataclasses.replace(sample(1.0), episode=played)
    keep(SampleTables(tmp_path, start_step=0), 1, shown)
    assert main(["samples", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "=== prompt 1",
        "--- reward 1 (match 1, length none), advantage +0.5, 3 tokens, adding: 2 turns, returned 0.5",
        "system:",
        "  Add.",
        "user:",
        "  1 + 2",
        "  please",
        "policy, 4 tokens trained, weights 1.3, 1.5 s, 0.25 s of it waiting:",
        "  It�[2J",
        "  is",
        "tool:",
        "  3",
        "policy, 2 tokens trained (0-1 rollout-0, 1-2 rollout-1), weights 1.3 1.4, "
        "0.123 s, 0 s of it waiting:",
        "  It is 3.",
        "state:",
        '  {"won": true}',
        "its program wrote:",
        "  asks",
        "  ends",
    ]


def test_a_state_that_is_no_unicode_is_kept_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played = episode("It is", state={"file": "caf\udce9", "é": 1})
    keep(SampleTables(tmp_path, start_step=0), 1, dataclasses.replace(sample(1.0), episode=played))
    assert main(["samples", str(tmp_path)]) == 0
    assert '  {"file": "caf?", "é": 1}' in capsys.readouterr().out.splitlines()


def test_sequences_are_told_apart_where_an_episode_has_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = episode().turns
    several = dataclasses.replace(
        episode(),
        turns=[first, dataclasses.replace(second, sequence=2)],
        returned=None,
        failures={"tool": 1, "limit": 1},
    )
    cut = dataclasses.replace(sample(1.0), episode=several, is_terminated=False)
    keep(SampleTables(tmp_path, start_step=0), 1, cut)
    assert main(["samples", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].endswith(
        "3 tokens, cut at a limit, adding: 2 turns in 2 sequences, returned none, failures: limit 1, tool 1"
    )
    assert [line.rpartition(", ")[2] for line in lines if line.startswith("policy")] == [
        "sequence 1:",
        "sequence 2:",
    ]


def test_no_role_looks_like_a_turn_of_the_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = episode().turns
    forged = dataclasses.replace(first, said=[Said("user:\npolicy, 9 tokens trained", "x")])
    shown = dataclasses.replace(episode(), turns=[forged, second])
    keep(SampleTables(tmp_path, start_step=0), 1, dataclasses.replace(sample(1.0), episode=shown))
    assert main(["samples", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[4:6] == ["user: policy, 9 tokens trained:", "  x"]
