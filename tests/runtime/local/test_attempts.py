"""What follows from the end of a local attempt. The rules are those of `grpo_api.judge`. Pure."""

from collections.abc import Sequence

import pytest

from grpo_api.contract.exit_codes import EXIT_POLICIES, exit_policy
from grpo_api.contract.progress import TerminationMessage
from grpo_api.contract.reasons import Reason
from grpo_api.judge.attempts import WithoutProgress
from grpo_api.v1alpha1.spec import FailedRole, FailureAction, FailureRule
from grpo_api.v1alpha1.status import ErrorSignature
from grpo_runtime.local.attempts import AttemptOutcome, Next, outcome_of_attempt
from grpo_runtime.local.process_table import ProcessOutcome


def ended(code: int, *, name: str = "trainer-0", reason: str | None = None, **more: object) -> ProcessOutcome:
    message = TerminationMessage(exit_code=code, reason=reason or exit_policy(code).reason, message="because")
    return ProcessOutcome(name, message.model_copy(update=more))


def outcome(
    *outcomes: ProcessOutcome,
    num_failures: int = 0,
    is_stop_requested: bool = False,
    has_worked: bool = False,
    error_before: ErrorSignature | None = None,
    rules: Sequence[FailureRule] = (),
) -> AttemptOutcome:
    return outcome_of_attempt(
        outcomes,
        attempt=num_failures + 1,
        past=WithoutProgress(num_failures),
        max_restarts=2,
        is_stop_requested=is_stop_requested,
        has_worked=has_worked,
        error_before=error_before,
        rules=rules,
    )


@pytest.mark.parametrize("code", [code for code in EXIT_POLICIES if code != 0])
def test_an_exit_code_is_retried_here_exactly_if_it_is_in_a_cluster(code: int) -> None:
    expected = Next.RETRY if exit_policy(code).is_retried else Next.FAILED
    assert outcome(ended(code)).next is expected


def test_an_error_of_the_user_is_retried_and_counted_once_the_job_has_made_a_step() -> None:
    assert outcome(ended(40), has_worked=True).next is Next.RETRY
    assert outcome(ended(40), has_worked=True, num_failures=2).next is Next.FAILED


def test_all_done_is_done() -> None:
    assert outcome(ended(0), ended(0, name="trainer-1")) == AttemptOutcome(Next.DONE)


def test_restarts_are_counted_up_to_the_limit_and_the_last_words_say_so() -> None:
    assert outcome(ended(1), num_failures=1).next is Next.RETRY
    failed = outcome(ended(1), num_failures=2)
    assert failed.next is Next.FAILED and failed.final is not None
    used_up = "attempt 3 failed and failurePolicy.maxRestarts (2) is used up"
    assert failed.final.message == f"{used_up}: because"


def test_the_same_error_twice_at_the_same_step_ends_the_job() -> None:
    bug = ErrorSignature(type="TypeError", where="mine.reward:3", step=7)
    failed = ended(1, error=bug)
    assert outcome(failed).next is Next.RETRY
    again = outcome(failed, error_before=bug)
    assert again.next is Next.FAILED and again.final is not None
    assert again.final.reason == Reason.REPEATED_ERROR


def test_a_hub_that_cannot_be_reached_uses_up_no_restart() -> None:
    unreachable = outcome(ended(75, reason=Reason.HUB_UNREACHABLE), num_failures=2)
    assert unreachable.next is Next.RETRY
    assert unreachable.cause is not None and not unreachable.cause.consequence.is_counted


def test_a_cause_ranks_above_its_consequences_in_whichever_order_they_end() -> None:
    def cause(*outcomes: ProcessOutcome) -> str:
        found = outcome(*outcomes).cause
        assert found is not None
        return found.ended.name

    lost = ended(75, reason=Reason.PEER_LOST, is_effect=True)
    assert cause(lost, ended(1, name="trainer-1")) == "trainer-1"
    assert cause(ended(143), ended(137, name="trainer-1")) == "trainer-1"
    assert cause(ended(1), ended(40, name="trainer-1")) == "trainer-1"


def test_a_requested_stop_ends_the_job_and_a_failure_on_the_way_is_not_retried() -> None:
    assert outcome(ended(143), is_stop_requested=True).next is Next.STOPPED
    failed = outcome(ended(1), is_stop_requested=True)
    assert failed.next is Next.FAILED and failed.final is not None
    assert outcome(ended(40), is_stop_requested=True).next is Next.FAILED
    assert outcome(ended(0), is_stop_requested=True).next is Next.DONE


@pytest.mark.parametrize(
    ("action", "code", "follows"),
    [
        (FailureAction.FAIL, 1, Next.FAILED),
        (FailureAction.RESTART, 40, Next.RETRY),
        (FailureAction.IGNORE, 40, Next.RETRY),
        # nobody can change a field of a local job while it waits: the next run continues
        (FailureAction.SUSPEND, 1, Next.FAILED),
    ],
)
def test_a_rule_of_the_failure_policy_decides_here_too(
    action: FailureAction, code: int, follows: Next
) -> None:
    rule = FailureRule(name="ours", action=action, role=FailedRole.TRAINER)
    found = outcome(ended(code), rules=[rule])
    assert found.next is follows and found.cause is not None
    assert found.cause.why.message == f"because (rule ours of failurePolicy: {action.value})"
    assert found.cause.consequence.is_counted is (action is FailureAction.RESTART)
    of_engines = rule.model_copy(update={"role": FailedRole.ROLLOUT})
    assert outcome(ended(1), rules=[of_engines]).next is Next.RETRY
    assert outcome(ended(1, name="rollout-0"), rules=[of_engines]).next is (
        Next.RETRY if action in (FailureAction.RESTART, FailureAction.IGNORE) else Next.FAILED
    )
