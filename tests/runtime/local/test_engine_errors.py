"""When an engine that ended with 40 ends a local job: as in a cluster. Pure."""

import pytest

from grpo_api.contract.progress import EngineCounts, Progress, TerminationMessage, TrainerState
from grpo_runtime.local.engine_errors import EngineErrorRule
from grpo_runtime.local.process_outcome import ProcessOutcome

ERROR = ProcessOutcome(
    "rollout-0", TerminationMessage(exit_code=40, reason="UserError", message="vLLM refuses --speed")
)


def report(heartbeat: int, *, current: int, step: int = 0) -> Progress:
    """What a trainer says; it has begun once an engine was Current."""
    state = TrainerState.TRAINING if current else TrainerState.WAITING_FOR_ROLLOUT
    engines = EngineCounts(desired=2, known=2, current=current)
    return Progress(
        job_uid="u", attempt=1, state=state, step=step, total_steps=9, heartbeat=heartbeat, engines=engines
    )


@pytest.mark.parametrize("progress", [None, report(1, current=0)], ids=["no report", "waits for engines"])
def test_before_the_first_step_an_error_is_fatal_at_once(progress: Progress | None) -> None:
    rule = EngineErrorRule(num_engines=1)
    assert rule.fatal([], progress, now=0) is None
    assert rule.fatal([ERROR], progress, now=0) is ERROR


def test_later_it_is_fatal_after_a_minute_without_engines() -> None:
    rule = EngineErrorRule(num_engines=1)
    assert rule.fatal([ERROR], report(1, current=1), now=0) is None
    for now in range(2, 62):
        assert rule.fatal([ERROR], report(now, current=0), now=now) is None
    assert rule.fatal([ERROR], report(62, current=0), now=62) is ERROR


def test_before_the_first_step_of_a_later_attempt_the_spec_has_worked_and_nothing_ends() -> None:
    rule = EngineErrorRule(num_engines=2, has_worked=True)
    assert rule.fatal([ERROR], report(1, current=0), now=0) is None


def test_an_engine_that_works_in_between_makes_the_minute_begin_again() -> None:
    rule = EngineErrorRule(num_engines=1)
    rule.fatal([ERROR], report(1, current=1), now=0)
    for now in range(2, 150):
        assert rule.fatal([ERROR], report(now, current=int(now % 50 == 0)), now=now) is None


def test_a_trainer_that_computes_for_minutes_after_a_sync_lacks_no_engine() -> None:
    rule = EngineErrorRule(num_engines=1)
    rule.fatal([ERROR], report(1, current=1), now=0)
    for now in range(2, 600):
        assert rule.fatal([ERROR], report(2, current=0), now=now) is None
    assert rule.fatal([ERROR], report(3, current=0, step=1), now=601) is None


def test_while_another_engine_may_come_back_nothing_ends_however_long_it_takes() -> None:
    rule = EngineErrorRule(num_engines=2)
    rule.fatal([ERROR], report(1, current=1), now=0)
    for now in range(2, 600):
        assert rule.fatal([ERROR], report(now, current=0), now=now) is None
    assert rule.fatal([ERROR, ERROR], report(600, current=0), now=600) is ERROR
