"""What a person sees of the progress of a local job."""

import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_api.contract.learning_signal import StepsWithoutSignal
from grpo_api.contract.left_out import LeftOutEnvironment
from grpo_api.contract.progress import Progress
from grpo_runtime.local.screen import Lines, ProgressDisplay


def report(step: int, *, num_lacking: int = 0, **changes: Any) -> Progress:
    counts = {"equal_rewards": num_lacking} if num_lacking else {}
    found = StepsWithoutSignal.of(counts, step=step, rewards=["accuracy"])
    said = {"job_uid": "uid", "attempt": 1, "step": step, "total_steps": 100, "steps_without_signal": found}
    return Progress(**(said | changes))


def test_it_is_said_once_that_steps_teach_nothing_and_again_after_one_that_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    display = ProgressDisplay(tmp_path, Lines(sys.stdout), total_steps=100)
    said = []
    for step, num_lacking in [(9, 9), (10, 10), (11, 11), (12, 0), (21, 9), (22, 10)]:
        display.update(report(step, num_lacking=num_lacking))
        said.append(capsys.readouterr().out)
    assert [text.startswith("NoLearningSignal: nothing was learned from accuracy") for text in said] == [
        *(False, True, False),
        *(False, False, True),
    ]


def test_it_is_said_once_that_an_environment_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    display = ProgressDisplay(tmp_path, Lines(sys.stdout), total_steps=100)
    go, said = (LeftOutEnvironment(name="go", num_groups=16),), []
    for step, left_out in enumerate([None, go, go, None, go]):
        display.update(report(step, left_out=left_out))
        said.append(capsys.readouterr().out)
    assert [text.startswith("EnvironmentFailing: of environment go the last 16") for text in said] == [
        *(False, True, False, False, True)
    ]
