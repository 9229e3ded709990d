"""Which of several failures is the cause, and what follows from each way in which a process can end."""

from datetime import UTC, datetime, timedelta

import pytest

from grpo_api.contract.exit_codes import exit_policy
from grpo_api.contract.progress import TerminationMessage
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.judge.causes import (
    COUNTED,
    NOT_COUNTED,
    Cause,
    Consequence,
    Precedence,
    cause_of,
    certain,
    consequence_of,
    disruption,
    first_cause,
)
from grpo_api.v1alpha1.status import ErrorSignature

FINAL = Consequence(is_retried=False, is_counted=False)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def end(
    code: int, reason: str = "", *, is_effect: bool = False, error: ErrorSignature | None = None
) -> TerminationMessage:
    return TerminationMessage(
        exit_code=code,
        reason=reason or exit_policy(code).reason,
        message="because",
        is_effect=is_effect,
        error=error,
    )


def follows(ended: TerminationMessage, *, has_worked: bool = False) -> Consequence:
    return consequence_of(ended, has_worked=has_worked)


@pytest.mark.parametrize(
    ("exit_code", "consequence"),
    [
        (1, COUNTED),
        (7, COUNTED),
        (40, FINAL),
        (41, FINAL),
        (42, FINAL),
        (43, COUNTED),
        (75, COUNTED),
        (137, COUNTED),
    ],
)
def test_an_exit_code_has_the_consequence_of_the_contracts_table(exit_code: int, consequence: Consequence):
    assert follows(end(exit_code)) == consequence


def test_an_error_of_the_user_is_retried_and_counted_once_the_job_has_worked():
    assert follows(end(40), has_worked=True) == COUNTED
    assert follows(end(42), has_worked=True) == FINAL


def test_a_stop_that_nobody_accounts_for_is_counted():
    assert follows(end(143)) == COUNTED


def test_out_of_memory_is_retried_and_counted_whatever_the_exit_code():
    assert follows(end(40, "OOMKilled")) == COUNTED
    assert follows(end(75, "OOMKilled")) == COUNTED


@pytest.mark.parametrize("reason", [Reason.HUB_UNREACHABLE, Reason.CHECKPOINT_MISSING])
def test_what_lies_outside_the_job_is_not_counted_as_the_process_itself_says(reason: Reason):
    assert follows(end(75, reason)) == NOT_COUNTED
    assert follows(end(1, reason)) == COUNTED
    assert follows(end(40, reason)) == FINAL


def test_a_gpu_that_was_out_of_memory_lowers_the_budget_where_another_attempt_follows():
    assert follows(end(75, Reason.GPU_OUT_OF_MEMORY)) == Consequence(
        is_retried=True, is_counted=True, lowers_budget=True
    )
    assert follows(end(40, Reason.GPU_OUT_OF_MEMORY)) == FINAL


def cause(
    ended: TerminationMessage, name: str, *, after: float | None = None, is_effect: bool | None = None
) -> Cause[str]:
    at = None if after is None else NOW + timedelta(seconds=after)
    return cause_of(ended, name, has_worked=False, is_effect=is_effect, ended_at=at)


@pytest.mark.parametrize(
    ("ended", "precedence"),
    [
        *((end(code), Precedence.CERTAIN) for code in (40, 41, 42)),
        (end(1, "OOMKilled", is_effect=True), Precedence.CERTAIN),
        *((end(code), Precedence.ERROR) for code in (1, 43, 75, 137)),
        (end(75, Reason.PEER_LOST, is_effect=True), Precedence.EFFECT),
        (end(143), Precedence.EFFECT),
    ],
    ids=str,
)
def test_causes_rank_above_errors_and_those_above_effects(ended: TerminationMessage, precedence: Precedence):
    assert cause(ended, "a").precedence is precedence


def test_a_process_that_we_ended_is_an_effect():
    assert cause(end(137), "a", is_effect=True).precedence is Precedence.EFFECT


def test_who_knows_better_decides_whether_another_process_is_to_blame():
    broken = end(1, is_effect=True)
    assert cause(broken, "a").precedence is Precedence.EFFECT
    assert cause(broken, "a", is_effect=False).precedence is Precedence.ERROR


def test_the_first_cause_goes_by_rank_then_by_time_then_by_order():
    lost, late = cause(end(75, is_effect=True), "lost", after=0), cause(end(1), "late", after=5)
    early, unseen = cause(end(7), "early", after=1), cause(end(137), "unseen")
    first = first_cause([lost, unseen, late, early])
    assert first is not None and first.ended == "early"
    first = first_cause([cause(end(1), "a"), cause(end(1), "b")])
    assert first is not None and first.ended == "a"
    assert first_cause([]) is None


def test_only_an_unexpected_error_can_repeat_itself():
    bug = ErrorSignature(type="TypeError", where="mine.reward:3")
    assert cause(end(1, error=bug), "a").error == bug
    assert cause(end(75, error=bug), "a").error is None
    assert cause(end(1, "OOMKilled", error=bug), "a").error is None


def test_an_attempt_that_never_had_room_does_not_count_that_it_gave_up():
    assert not cause(end(43), "a").without_room().consequence.is_counted
    assert not cause(end(75, Reason.PEER_LOST, is_effect=True), "a").without_room().consequence.is_counted
    assert cause(end(1), "a").without_room().consequence.is_counted


def test_a_disruption_does_not_count_and_what_hung_does():
    why = ReasonMessage("Evicted", "the node was low on memory")
    taken, hung = disruption(why, "a", exit_code=137), certain(why, "a", exit_code=0)
    assert (taken.precedence, taken.consequence, taken.exit_code) == (Precedence.DISRUPTION, NOT_COUNTED, 137)
    assert (hung.precedence, hung.consequence, hung.exit_code) == (Precedence.CERTAIN, COUNTED, 0)
