"""What follows from each way in which an attempt can fail."""

import pytest

from grpo_operator.plan.consequence import Consequence, consequence_of

from .fake_cluster import termination, termination_message

COUNTED = Consequence(is_retried=True, is_counted=True)
NOT_COUNTED = Consequence(is_retried=True, is_counted=False)
FINAL = Consequence(is_retried=False, is_counted=False)


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
    assert consequence_of(termination(exit_code), is_disruption=False) == consequence


def test_an_error_of_the_user_is_retried_and_counted_once_the_job_has_worked():
    assert consequence_of(termination(40), is_disruption=False, has_worked=True) == COUNTED
    assert consequence_of(termination(42), is_disruption=False, has_worked=True) == FINAL


@pytest.mark.parametrize("exit_code", [0, 1, 40, 137, 143])
def test_a_disruption_is_retried_and_not_counted_whatever_the_exit_code(exit_code: int):
    assert consequence_of(termination(exit_code), is_disruption=True) == NOT_COUNTED


def test_a_pod_that_was_lost_with_its_node_is_retried_and_not_counted():
    assert consequence_of(None, is_disruption=True) == NOT_COUNTED


def test_a_trainer_that_hangs_is_retried_and_counted():
    assert consequence_of(None, is_disruption=False) == COUNTED


def test_a_stop_without_a_disruption_is_counted():
    assert consequence_of(termination(143), is_disruption=False) == COUNTED


def test_out_of_memory_is_retried_and_counted_whatever_the_exit_code():
    assert consequence_of(termination(40, reason="OOMKilled"), is_disruption=False) == COUNTED


def test_a_hub_that_cannot_be_reached_is_retried_and_not_counted_as_the_process_itself_says():
    written = termination_message(75, "HubUnreachable", "the Hub cannot be reached")
    assert consequence_of(termination(75, written), is_disruption=False) == NOT_COUNTED


def test_a_gpu_that_was_out_of_memory_is_retried_where_the_process_says_that_it_may_help():
    written = {code: termination_message(code, "GPUOutOfMemory", "no memory") for code in (40, 75)}
    assert consequence_of(termination(75, written[75]), is_disruption=False) == COUNTED
    assert consequence_of(termination(40, written[40]), is_disruption=False) == FINAL


@pytest.mark.parametrize(
    ("exit_code", "message", "reason", "expected"),
    [
        (75, "HubUnreachable: the Hub cannot be reached", "", COUNTED),
        (75, termination_message(75, "VolumeFull", "no space is left"), "", COUNTED),
        (1, termination_message(1, "HubUnreachable", "told so"), "", COUNTED),
        (40, termination_message(40, "HubUnreachable", "told so"), "", FINAL),
        (75, termination_message(75, "HubUnreachable", "told so"), "OOMKilled", COUNTED),
    ],
    ids=["the end of a log", "another reason", "another code", "the user's error", "out of memory"],
)
def test_nothing_else_passes_for_a_hub_that_cannot_be_reached(exit_code, message, reason, expected):
    assert consequence_of(termination(exit_code, message, reason=reason), is_disruption=False) == expected
