"""Which steps keep their completions."""

import pytest
from pod_builder import run_config


@pytest.mark.parametrize(
    ("report", "kept"),
    [
        (None, [10, 20, 25]),
        ({}, [10, 20, 25]),
        ({"samplesEverySteps": 12}, [12, 24, 25]),
        ({"samplesEverySteps": 100}, [25]),
        ({"samplesEverySteps": 0}, []),
    ],
)
def test_completions_are_kept_every_so_many_steps_and_at_the_end(
    report: dict[str, int] | None, kept: list[int]
) -> None:
    run = run_config(algorithm={"steps": 25}, report=report)
    assert [step for step in range(1, 26) if run.keeps_samples_of(step)] == kept
