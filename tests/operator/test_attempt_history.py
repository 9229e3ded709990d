"""Consecutive failures, as one process of the operator counts them."""

from datetime import timedelta

from grpo_api.v1alpha1.status import GRPOJobStatus, Phase
from grpo_operator.observe.attempt_history import AttemptHistory

from .fake_cluster import NOW


def status(attempt: int, *, checkpoint_step: int | None, phase: Phase = Phase.RUNNING) -> GRPOJobStatus:
    return GRPOJobStatus(attempt=attempt, checkpoint_step=checkpoint_step, phase=phase)


def test_a_newer_checkpoint_is_progress():
    history = AttemptHistory.begin(status(1, checkpoint_step=None), NOW).updated(
        status(2, checkpoint_step=3), NOW
    )
    assert history.failures.num_failures == 1
    assert history.updated(status(2, checkpoint_step=4), NOW).failures.num_failures == 0


def test_an_attempt_that_ends_before_it_reports_its_checkpoint_does_not_make_the_old_one_newer():
    history = AttemptHistory.begin(status(1, checkpoint_step=3), NOW)
    for attempt in (2, 3):
        history = history.updated(status(attempt, checkpoint_step=None), NOW)
    assert history.updated(status(3, checkpoint_step=3), NOW).failures.num_failures == 2


def test_only_the_time_in_which_pods_run_counts_for_a_long_run():
    history = AttemptHistory.begin(status(2, checkpoint_step=None, phase=Phase.PENDING), NOW)
    begun = history.updated(status(2, checkpoint_step=None), NOW + timedelta(seconds=1000))
    assert (
        begun.updated(status(2, checkpoint_step=None), NOW + timedelta(seconds=1299)).failures.num_failures
        == 1
    )
    assert (
        begun.updated(status(2, checkpoint_step=None), NOW + timedelta(seconds=1300)).failures.num_failures
        == 0
    )
