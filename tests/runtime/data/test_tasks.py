"""A new built-in task is a function and a row."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from data_runs import dataset_run

from grpo_runtime.data.source import load_prompts
from grpo_runtime.data.tasks import TASKS


def test_a_task_that_is_a_function_and_a_row_gives_the_prompts_of_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def shout_task() -> Iterator[tuple[str, str]]:
        for word in ("ab", "cd"):
            yield f"{word}=", word.upper()

    monkeypatch.setitem(TASKS, "shout", shout_task)
    run = dataset_run("builtin://copy")
    dataset = run.dataset.model_copy(update={"source": "builtin://shout"})
    shouting = run.model_copy(update={"dataset": dataset})
    prompts = load_prompts(shouting, volumes_dir=Path("/nowhere"), needs_answers=True)
    assert [(prompt.content, prompt.columns["answer"]) for prompt in prompts] == [
        ("ab=", "AB"),
        ("cd=", "CD"),
    ]
