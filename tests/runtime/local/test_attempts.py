"""What follows from the end of an attempt, and when. Pure."""

from dataclasses import replace

import pytest
from local_command import job_object

from grpo_api.contract.exit_codes import EXIT_POLICIES, exit_policy
from grpo_api.contract.progress import Progress, TerminationMessage, TrainerState
from grpo_api.contract.reasons import Reason
from grpo_api.contract.retries import WithoutProgress
from grpo_api.v1alpha1.job import parse_job
from grpo_api.v1alpha1.status import ErrorSignature
from grpo_runtime.local.attempts import (
    AttemptOutcome,
    Next,
    engine_delay,
    outcome_of_attempt,
    with_progress_of,
)
from grpo_runtime.local.deadlines import Deadlines
from grpo_runtime.local.process_outcome import ProcessOutcome


def ended(code: int, *, name: str = "trainer-0", reason: str | None = None) -> ProcessOutcome:
    message = TerminationMessage(exit_code=code, reason=reason or exit_policy(code).reason, message="because")
    return ProcessOutcome(name, message)


def outcome(
    *outcomes: ProcessOutcome,
    num_failures: int = 0,
    is_stop_requested: bool = False,
    error_before: ErrorSignature | None = None,
) -> AttemptOutcome:
    return outcome_of_attempt(
        outcomes,
        num_failures=num_failures,
        max_restarts=2,
        is_stop_requested=is_stop_requested,
        error_before=error_before,
    )


@pytest.mark.parametrize("code", [code for code in EXIT_POLICIES if code != 0])
def test_an_exit_code_is_retried_here_exactly_if_it_is_in_a_cluster(code: int) -> None:
    expected = Next.RETRY if exit_policy(code).is_retried else Next.FAILED
    assert outcome(ended(code)).next is expected


def test_an_error_of_the_user_is_retried_and_counted_once_the_job_has_made_a_step() -> None:
    def after(num_failures: int) -> AttemptOutcome:
        return outcome_of_attempt(
            [ended(40)],
            num_failures=num_failures,
            max_restarts=2,
            is_stop_requested=False,
            has_worked=True,
        )

    assert after(0) == AttemptOutcome(Next.RETRY, ended(40), is_counted=True)
    assert after(2) == AttemptOutcome(Next.FAILED, ended(40), has_used_up_restarts=True)


def test_all_done_is_done() -> None:
    assert outcome(ended(0), ended(0, name="trainer-1")) == AttemptOutcome(Next.DONE)


def test_restarts_are_counted_up_to_the_limit() -> None:
    assert outcome(ended(1), num_failures=1).next is Next.RETRY
    assert outcome(ended(1), num_failures=2) == AttemptOutcome(
        Next.FAILED, ended(1), has_used_up_restarts=True
    )


def test_the_same_error_twice_at_the_same_step_ends_the_job() -> None:
    bug = ErrorSignature(type="TypeError", where="mine.reward:3", step=7)
    failed = ended(1)
    failed = replace(failed, termination=failed.termination.model_copy(update={"error": bug}))
    assert outcome(failed).next is Next.RETRY
    assert outcome(failed, error_before=bug.model_copy(update={"step": 6})).next is Next.RETRY
    assert outcome(ended(1), error_before=bug).next is Next.RETRY
    again = outcome(failed, error_before=bug)
    assert again.next is Next.FAILED and again.cause is not None
    assert again.cause.termination.reason == "RepeatedError"
    assert again.cause.termination.message.startswith("the same error twice at step 7: because;")


def test_a_hub_that_cannot_be_reached_uses_up_no_restart() -> None:
    unreachable = ended(75, reason=Reason.HUB_UNREACHABLE)
    assert outcome(unreachable, num_failures=2) == AttemptOutcome(Next.RETRY, unreachable, is_counted=False)
    assert outcome(ended(1, reason=Reason.HUB_UNREACHABLE), num_failures=2).next is Next.FAILED
    assert outcome(ended(75), num_failures=1).is_counted


def test_a_gpu_that_was_out_of_memory_lowers_the_budget_where_it_is_retried() -> None:
    small = ended(75, reason=Reason.GPU_OUT_OF_MEMORY)
    assert outcome(small) == AttemptOutcome(Next.RETRY, small, needs_lower_budget=True)
    assert outcome(small, num_failures=2).next is Next.FAILED
    assert outcome(ended(40, reason=Reason.GPU_OUT_OF_MEMORY)).next is Next.FAILED


def test_a_cause_ranks_above_its_consequences_in_whichever_order_they_end() -> None:
    lost = ended(75, name="trainer-0", reason=Reason.PEER_LOST)
    assert outcome(lost, ended(1, name="trainer-1")).cause == ended(1, name="trainer-1")
    assert outcome(ended(143), ended(137, name="trainer-1")).cause == ended(137, name="trainer-1")
    assert outcome(ended(1), ended(40, name="trainer-1")).cause == ended(40, name="trainer-1")


def test_a_requested_stop_ends_the_job_and_a_failure_on_the_way_is_not_retried() -> None:
    assert outcome(ended(143), is_stop_requested=True).next is Next.STOPPED
    assert outcome(ended(1), is_stop_requested=True).next is Next.FAILED
    assert outcome(ended(0), is_stop_requested=True).next is Next.DONE


def saved(step: int | None, *, resumed_from_step: int | None = None) -> Progress:
    return report(TrainerState.TRAINING, heartbeat=1).model_copy(
        update={"step": 9, "checkpoint_step": step, "resumed_from_step": resumed_from_step}
    )


def test_steps_that_were_not_saved_are_no_progress() -> None:
    past = WithoutProgress(num_failures=3)
    assert with_progress_of(past, saved(None)) == past
    assert with_progress_of(past, None) == past


def test_a_newer_checkpoint_is_progress_and_one_that_was_there_before_is_not() -> None:
    past = with_progress_of(WithoutProgress(3, checkpoint_step=4), saved(6, resumed_from_step=4))
    assert past == WithoutProgress(checkpoint_step=6)
    failed = past.with_end(is_counted=True)
    assert with_progress_of(failed, saved(6, resumed_from_step=6)) == failed


def test_the_checkpoint_of_a_command_before_this_one_is_no_progress() -> None:
    past = with_progress_of(WithoutProgress(1), saved(6, resumed_from_step=6))
    assert past == WithoutProgress(1, checkpoint_step=6)


def test_an_engine_is_started_again_at_once_unless_it_keeps_ending_early() -> None:
    assert engine_delay(ran_seconds=3600, num_short_runs=9) == 0
    assert [engine_delay(ran_seconds=1, num_short_runs=n) for n in (0, 1, 2, 9)] == [0, 5, 10, 60]


def report(state: TrainerState, *, heartbeat: int, message: str = "") -> Progress:
    return Progress(job_uid="u", attempt=1, state=state, total_steps=9, heartbeat=heartbeat, message=message)


def deadlines() -> Deadlines:
    spec = parse_job(job_object(startupDeadlineSeconds=100, stallTimeoutSeconds=30)).spec
    return Deadlines(spec, now=0.0)


def test_an_attempt_that_begins_no_step_in_time_fails_with_what_held_it_up() -> None:
    clocks = deadlines()
    for now in range(0, 101, 20):
        waiting = report(TrainerState.WAITING_FOR_ROLLOUT, heartbeat=now, message="no engine")
        assert clocks.missed(waiting, now=now) is None
    missed = clocks.missed(waiting.model_copy(update={"heartbeat": 999}), now=101)
    assert missed is not None
    assert (missed.reason, missed.message) == (
        "StartupDeadlineExceeded",
        "no step began within startupDeadlineSeconds (100): no engine",
    )
    assert not exit_policy(missed.exit_code).is_retried


def test_the_time_in_which_a_checkpoint_is_read_does_not_count() -> None:
    clocks = deadlines()
    for now in range(0, 400, 40):
        reading = report(TrainerState.STARTING, heartbeat=now, message="checking the checkpoint")
        assert clocks.missed(reading, now=now) is None
    assert clocks.missed(reading, now=460) is None
    missed = clocks.missed(reading, now=461)
    assert missed is not None and missed.message.endswith("(100): checking the checkpoint")


def test_a_long_start_is_no_stall_and_the_startup_deadline_covers_it() -> None:
    for state in (TrainerState.STARTING, TrainerState.WAITING_FOR_ROLLOUT):
        clocks = deadlines()
        starting = report(state, heartbeat=1)
        assert [clocks.missed(starting, now=now) for now in (1, 32, 99)] == [None, None, None]
        missed = clocks.missed(starting, now=101)
        assert missed is not None and missed.reason == "StartupDeadlineExceeded"


def test_the_stall_clock_runs_from_the_report_that_says_work_has_begun() -> None:
    clocks = deadlines()
    assert clocks.missed(report(TrainerState.STARTING, heartbeat=1), now=1) is None
    training = report(TrainerState.TRAINING, heartbeat=2)
    assert clocks.missed(training, now=90) is None
    assert clocks.missed(training, now=120) is None
    missed = clocks.missed(training, now=121)
    assert missed is not None and missed.reason == "TrainerStalled"


def test_a_heartbeat_that_stands_still_is_a_stall_which_is_retried() -> None:
    clocks = deadlines()
    training = report(TrainerState.TRAINING, heartbeat=1)
    assert clocks.missed(training, now=10) is None
    assert clocks.missed(training, now=40) is None
    missed = clocks.missed(training, now=41)
    assert missed is not None and missed.reason == "TrainerStalled"
    assert exit_policy(missed.exit_code).is_retried
    assert clocks.missed(report(TrainerState.TRAINING, heartbeat=2), now=500) is None
