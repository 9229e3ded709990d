"""What ends a running local attempt: its deadlines, and engines that no retry can mend. Pure."""

import pytest
from local_command import job_object

from grpo_api.contract.exit_codes import exit_policy
from grpo_api.contract.progress import EngineCounts, Progress, TerminationMessage, TrainerState
from grpo_api.v1alpha1.job import parse_job
from grpo_runtime.local.attempts import AttemptLimits
from grpo_runtime.local.process_table import ProcessOutcome

ERROR = ProcessOutcome(
    "rollout-0", TerminationMessage(exit_code=40, reason="UserError", message="vLLM refuses --speed")
)


def report(state: TrainerState, *, heartbeat: int, message: str = "") -> Progress:
    return Progress(job_uid="u", attempt=1, state=state, total_steps=9, heartbeat=heartbeat, message=message)


def limits(*, num_engines: int = 0, has_worked: bool = False) -> AttemptLimits:
    spec = parse_job(job_object(startupDeadlineSeconds=1000, stallTimeoutSeconds=1000)).spec
    return AttemptLimits(spec, num_engines=num_engines, now=0.0, has_worked=has_worked)


class Deadlines:
    """The limits of an attempt without engines of its own, as termination messages."""

    def __init__(self) -> None:
        spec = parse_job(job_object(startupDeadlineSeconds=100, stallTimeoutSeconds=30)).spec
        self._limits = AttemptLimits(spec, num_engines=0, now=0.0)

    def missed(self, progress: Progress | None, *, now: float) -> TerminationMessage | None:
        found = self._limits.exceeded(progress, now=now)
        return found.termination if found else None


def test_an_attempt_that_begins_no_step_in_time_fails_with_what_held_it_up() -> None:
    clocks = Deadlines()
    for now in range(0, 100, 20):
        waiting = report(TrainerState.WAITING_FOR_ROLLOUT, heartbeat=now, message="no engine")
        assert clocks.missed(waiting, now=now) is None
    missed = clocks.missed(waiting.model_copy(update={"heartbeat": 999}), now=100)
    assert missed is not None
    assert (missed.reason, missed.message) == (
        "StartupDeadlineExceeded",
        "no step began within startupDeadlineSeconds (100): no engine",
    )
    assert not exit_policy(missed.exit_code).is_retried


def test_the_time_in_which_a_checkpoint_is_read_does_not_count() -> None:
    clocks = Deadlines()
    for now in range(0, 400, 40):
        reading = report(TrainerState.STARTING, heartbeat=now, message="checking the checkpoint")
        assert clocks.missed(reading, now=now) is None
    assert clocks.missed(reading, now=459) is None
    missed = clocks.missed(reading, now=460)
    assert missed is not None and missed.message.endswith("(100): checking the checkpoint")


def test_a_long_start_is_no_stall_and_the_startup_deadline_covers_it() -> None:
    for state in (TrainerState.STARTING, TrainerState.WAITING_FOR_ROLLOUT):
        clocks = Deadlines()
        starting = report(state, heartbeat=1)
        assert [clocks.missed(starting, now=now) for now in (1, 32, 99)] == [None, None, None]
        missed = clocks.missed(starting, now=101)
        assert missed is not None and missed.reason == "StartupDeadlineExceeded"


def test_the_stall_clock_runs_from_the_report_that_says_work_has_begun() -> None:
    clocks = Deadlines()
    assert clocks.missed(report(TrainerState.STARTING, heartbeat=1), now=1) is None
    training = report(TrainerState.TRAINING, heartbeat=2)
    assert clocks.missed(training, now=90) is None
    assert clocks.missed(training, now=119) is None
    missed = clocks.missed(training, now=120)
    assert missed is not None and missed.reason == "TrainerStalled"


def test_a_report_that_is_missing_once_does_not_begin_the_start_anew() -> None:
    clocks = Deadlines()
    assert clocks.missed(report(TrainerState.TRAINING, heartbeat=1), now=90) is None
    assert clocks.missed(None, now=110) is None
    missed = clocks.missed(None, now=120)
    assert missed is not None and missed.reason == "TrainerStalled"


def test_a_heartbeat_that_stands_still_is_a_stall_which_is_retried() -> None:
    clocks = Deadlines()
    training = report(TrainerState.TRAINING, heartbeat=1)
    assert clocks.missed(training, now=10) is None
    assert clocks.missed(training, now=39) is None
    missed = clocks.missed(training, now=40)
    assert missed is not None and missed.reason == "TrainerStalled"
    assert exit_policy(missed.exit_code).is_retried
    assert clocks.missed(report(TrainerState.TRAINING, heartbeat=2), now=500) is None


def engines_report(heartbeat: int, *, current: int, step: int = 0) -> Progress:
    """What a trainer says; it has begun once an engine was Current."""
    state = TrainerState.TRAINING if current else TrainerState.WAITING_FOR_ROLLOUT
    engines = EngineCounts(desired=2, known=2, current=current)
    return Progress(
        job_uid="u", attempt=1, state=state, step=step, total_steps=9, heartbeat=heartbeat, engines=engines
    )


@pytest.mark.parametrize(
    "progress", [None, engines_report(1, current=0)], ids=["no report", "waits for engines"]
)
def test_before_the_first_step_an_error_is_fatal_at_once(progress: Progress | None) -> None:
    rule = limits(num_engines=1)
    assert rule.exceeded(progress, [], now=0) is None
    assert rule.exceeded(progress, [ERROR], now=0) is ERROR


def test_later_it_is_fatal_after_a_minute_without_engines() -> None:
    rule = limits(num_engines=1)
    assert rule.exceeded(engines_report(1, current=1), [ERROR], now=0) is None
    for now in range(2, 62):
        assert rule.exceeded(engines_report(now, current=0), [ERROR], now=now) is None
    assert rule.exceeded(engines_report(62, current=0), [ERROR], now=62) is ERROR


def test_before_the_first_step_of_a_later_attempt_the_spec_has_worked_and_nothing_ends() -> None:
    rule = limits(num_engines=2, has_worked=True)
    assert rule.exceeded(engines_report(1, current=0), [ERROR], now=0) is None


def test_an_engine_that_works_in_between_makes_the_minute_begin_again() -> None:
    rule = limits(num_engines=1)
    rule.exceeded(engines_report(1, current=1), [ERROR], now=0)
    for now in range(2, 150):
        assert rule.exceeded(engines_report(now, current=int(now % 50 == 0)), [ERROR], now=now) is None


def test_a_trainer_that_computes_for_minutes_after_a_sync_lacks_no_engine() -> None:
    rule = limits(num_engines=1)
    rule.exceeded(engines_report(1, current=1), [ERROR], now=0)
    for now in range(2, 600):
        assert rule.exceeded(engines_report(2, current=0), [ERROR], now=now) is None
    assert rule.exceeded(engines_report(3, current=0, step=1), [ERROR], now=601) is None


def test_while_another_engine_may_come_back_nothing_ends_however_long_it_takes() -> None:
    rule = limits(num_engines=2)
    rule.exceeded(engines_report(1, current=1), [ERROR], now=0)
    for now in range(2, 600):
        assert rule.exceeded(engines_report(now, current=0), [ERROR], now=now) is None
    assert rule.exceeded(engines_report(600, current=0), [ERROR, ERROR], now=600) is ERROR
