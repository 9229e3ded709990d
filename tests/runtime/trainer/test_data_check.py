"""Faults of data, tokenizer and reward functions are found without weights and engines."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pod_builder import run_config, trainer_environment

from grpo_api.contract.progress import TerminationMessage
from grpo_runtime.errors import UserError
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.trainer import data_check
from grpo_runtime.trainer.data_check import check_data


def source(folder: Path, *rows: dict[str, Any]) -> dict[str, str]:
    path = folder / "train.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return {"source": f"file://{path}"}


GOOD = {"prompt": "a=", "answer": "a"}


def check(folder: Path, told: list[str] | None = None, **spec: Any) -> int:
    return check_data(
        run_config(**spec),
        volumes_dir=folder / "volumes",
        cache_dir=folder / "cache",
        has_cpu_engines=True,
        tell=(told if told is not None else []).append,
    )


def test_prompts_that_can_be_trained_on_are_counted(tmp_path: Path) -> None:
    assert check(tmp_path, dataset=source(tmp_path, GOOD, GOOD, {**GOOD, "prompt": "a" * 999})) == 2


def test_the_first_faults_of_data_and_rewards_are_told_together(tmp_path: Path) -> None:
    rewards = [
        {"name": "copy", "builtin": "exact_match"},
        {"name": "mine", "function": "json:no_such_function"},
    ]
    with pytest.raises(UserError, match=r"^row 2 of the dataset has no usable prompt .*; .*no_such_function"):
        check(tmp_path, dataset=source(tmp_path, GOOD, {"prompt": 7, "answer": "a"}), rewards=rewards)


def test_a_function_that_does_not_fit_the_data_is_told(tmp_path: Path) -> None:
    rewards = [{"name": "mine", "function": "shutil:copyfile"}]
    with pytest.raises(UserError, match=r"reward mine does not fit this job: it needs src and dst.* answer"):
        check(tmp_path, dataset=source(tmp_path, GOOD), rewards=rewards)


def test_an_agent_is_played_and_what_it_needs_and_may_run_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "plays.py").write_text(
        "async def agent(client, board, size=3):\n"
        "    exec(board)\n"
        "    chat = [{'role': 'user', 'content': board}]\n"
        "    await client.chat.completions.create(model='policy', messages=chat)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.syspath_prepend(tmp_path)
    spec: dict[str, Any] = {
        "environments": [{"name": "game", "function": "plays:agent"}],
        "rewards": None,
        "sampling": {"chatTemplate": "{{ messages[0].content }}", "maxTokens": 4},
    }
    told: list[str] = []
    with pytest.raises(
        UserError, match=r"environment game: the agent cannot be called \(.*'board'\): .*answer"
    ):
        check(tmp_path, dataset=source(tmp_path, GOOD), **spec)
    assert "environment game: line 2 of plays.py calls exec" in caplog.text
    with pytest.raises(UserError, match=r"environment game: .* it raised NameError: name 'x' .*plain text"):
        check(tmp_path, dataset=source(tmp_path, {**GOOD, "board": "x"}), **spec)
    assert check(tmp_path, told, dataset=source(tmp_path, {**GOOD, "board": "1"}), **spec) == 1
    assert told == ["environment game: plain text ends the episode after 1 turn, with no reward"]


@pytest.mark.matrix
def test_the_tools_of_an_environment_are_started_too(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('the key is not set')"]
    tools = {"mcpServers": [{"name": "wiki", "command": command}]}
    with pytest.raises(
        UserError, match=r"environment game: MCP server wiki did not start: .* the key is not set"
    ):
        check(
            tmp_path,
            dataset=source(tmp_path, GOOD),
            environments=[{"name": "game", "tools": tools}],
            sampling={"maxTokens": 8, "toolCallParser": "hermes"},
        )


def test_prompts_of_an_evaluation_are_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "eval.jsonl").write_text(json.dumps({"prompt": "", "answer": "a"}))
    evaluated = {"source": f"file://{tmp_path}/eval.jsonl", "everySteps": 1}
    with pytest.raises(
        UserError, match=r"^dataset\.eval: row 1 of the dataset has a prompt without any token"
    ):
        check(tmp_path, dataset={**source(tmp_path, GOOD), "eval": evaluated})


def test_a_model_that_engines_on_cpu_cannot_run_is_told(tmp_path: Path) -> None:
    model = tmp_path / "model"
    write_tiny_model(model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"head_dim": 16}))
    with pytest.raises(UserError, match="heads have head_dim 16, for which vLLM has no attention on CPU"):
        check(tmp_path, dataset=source(tmp_path, GOOD), model={"source": f"file://{model}"})


def test_services_are_left_alone(tmp_path: Path) -> None:
    rewards = [{"name": "judge", "service": {"url": "http://nobody.invalid/score"}}]
    assert check(tmp_path, dataset=source(tmp_path, GOOD), rewards=rewards) == 1


def test_a_process_of_its_own_ends_as_a_trainer_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_config(dataset=source(tmp_path, {"prompt": "a=", "answer": True}))
    for name, value in trainer_environment(tmp_path / "pod", run).items():
        monkeypatch.setenv(name, value)
    log = tmp_path / "termination-log"
    assert data_check.main(["--termination-log", str(log)]) == 40
    written = TerminationMessage.model_validate_json(log.read_text())
    assert "column answer of row 1 is the boolean true" in written.message
