"""What follows from each exit code."""

import pytest

from grpo_api.contract.exit_codes import EXIT_POLICIES, ExitCode, exit_policy, is_uncounted
from grpo_api.contract.reasons import Reason


def test_every_exit_code_has_a_policy_and_an_unknown_one_is_unexpected():
    assert set(EXIT_POLICIES) == set(ExitCode)
    assert exit_policy(3) is EXIT_POLICIES[ExitCode.UNEXPECTED]


def test_an_error_that_only_the_user_can_fix_is_never_retried():
    for code in (ExitCode.USER_ERROR, ExitCode.DATA_EXHAUSTED, ExitCode.CHECKPOINT_CORRUPT):
        assert not exit_policy(code).is_retried


@pytest.mark.parametrize("code", ExitCode)
def test_once_a_job_has_worked_only_an_error_of_the_user_is_judged_otherwise(code: ExitCode):
    before, after = exit_policy(code), exit_policy(code, has_worked=True)
    assert (before != after) is (code is ExitCode.USER_ERROR)
    if code is ExitCode.USER_ERROR:
        assert (after.is_retried, after.is_counted, after.reason) == (True, True, before.reason)


@pytest.mark.parametrize("reason", [Reason.HUB_UNREACHABLE, Reason.CHECKPOINT_MISSING])
def test_what_lies_outside_the_job_or_waits_for_a_person_is_not_counted(reason: Reason):
    assert is_uncounted(ExitCode.TRANSIENT, reason=reason)
    assert not is_uncounted(ExitCode.UNEXPECTED, reason=reason)
