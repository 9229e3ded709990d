"""Failures in a row, as one process of the operator counts them."""

from datetime import timedelta

from grpo_api.v1alpha1.status import GRPOJobStatus, Phase
from grpo_operator.streak import Streak

from .fake_world import NOW


def status(attempt: int, *, checkpoint_step: int | None, phase: Phase = Phase.RUNNING) -> GRPOJobStatus:
    return GRPOJobStatus(attempt=attempt, checkpoint_step=checkpoint_step, phase=phase)


def test_a_newer_checkpoint_ends_the_row():
    streak = Streak.begin(status(1, checkpoint_step=None), NOW).seen(status(2, checkpoint_step=3), NOW)
    assert streak.failures == 1
    assert streak.seen(status(2, checkpoint_step=4), NOW).failures == 0


def test_an_attempt_that_ends_before_it_tells_its_checkpoint_does_not_make_the_old_one_newer():
    streak = Streak.begin(status(1, checkpoint_step=3), NOW)
    for attempt in (2, 3):
        streak = streak.seen(status(attempt, checkpoint_step=None), NOW)
    assert streak.seen(status(3, checkpoint_step=3), NOW).failures == 2


def test_only_the_time_in_which_pods_run_counts_for_a_long_run():
    streak = Streak.begin(status(2, checkpoint_step=None, phase=Phase.PENDING), NOW)
    begun = streak.seen(status(2, checkpoint_step=None), NOW + timedelta(seconds=1000))
    assert begun.seen(status(2, checkpoint_step=None), NOW + timedelta(seconds=1299)).failures == 1
    assert begun.seen(status(2, checkpoint_step=None), NOW + timedelta(seconds=1300)).failures == 0
