"""Which jobs' changes wait, and which do not."""

from typing import Any

import pytest

from grpo_operator.urgency import Urgency, is_starting, urgency_of

BEGAN = "2026-01-01T00:00:00Z"
LATER = "2026-01-01T00:05:00Z"


def status(phase: str, *, step: int = 0, engines: tuple[str, str] | None = None) -> dict[str, Any]:
    """`engines` is the status of RolloutReady and since when it has it."""
    found: dict[str, Any] = {"phase": phase, "step": step, "startTime": BEGAN}
    if engines is not None:
        value, since = engines
        found["conditions"] = [{"type": "RolloutReady", "status": value, "lastTransitionTime": since}]
    return {"status": found}


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (None, Urgency.START),
        ({}, Urgency.START),
        (status("Running"), Urgency.START),
        (status("Running", step=1), Urgency.NEWS),
        (status("Restarting", step=1), Urgency.NEWS),
        (status("Succeeded", step=1), Urgency.START),
        (status("Failed", step=1), Urgency.START),
    ],
)
def test_only_a_job_that_has_made_a_step_and_has_not_ended_is_news(
    job: dict[str, Any] | None, expected: Urgency
) -> None:
    assert urgency_of(job) is expected


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (status("Pending"), True),
        (status("Starting"), True),
        (status("Starting", step=1), False),
        # the trainer runs, and not all engines have been admitted yet
        (status("Running", engines=("False", BEGAN)), True),
        (status("Running", engines=("True", LATER)), False),
        # some were lost since
        (status("Running", engines=("False", LATER)), False),
        (status("Running"), False),
        (status("Failed"), False),
        (status("Failed", engines=("False", BEGAN)), False),
        (None, False),
    ],
)
def test_a_job_is_starting_until_all_engines_were_admitted_once(
    job: dict[str, Any] | None, expected: bool
) -> None:
    assert is_starting(job) is expected
