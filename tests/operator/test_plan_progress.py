"""Which of several reports of a trainer the status shows."""

import pytest

from .fake_world import FakeWorld, report, termination, termination_message


def test_newer_numbers_of_the_same_step_are_shown():
    world = FakeWorld().start()
    for rate in (1.0, 2.0):
        world.progress = report(tokens_per_second=rate)
        world.step()
    assert world.status.tokens_per_second == "2"


def test_a_checkpoint_that_was_committed_within_a_step_is_shown():
    world = FakeWorld().start()
    for checkpoint_step in (None, 3, 4):
        world.progress = report(checkpoint_step=checkpoint_step)
        world.step()
        assert world.status.checkpoint_step == checkpoint_step


def test_what_a_trainer_reported_at_its_end_replaces_what_it_reported_at_the_last_poll():
    world = FakeWorld().start()
    world.progress = report(step=6, policy_version="1.6")
    at_its_end = report(step=7, policy_version="1.7", checkpoint_step=7)
    world.end(
        world.pod("trainer-a1-0"),
        termination(1, termination_message(1, "UnexpectedError", "boom", progress=at_its_end)),
    )
    world.step()
    assert (world.status.attempt, world.status.step, world.status.checkpoint_step) == (2, 7, 7)


@pytest.mark.parametrize("changes", [{"job_uid": "another"}, {"attempt": 9}])
def test_a_termination_message_about_another_job_or_attempt_is_ignored(changes: dict):
    world = FakeWorld().start()
    foreign = report(step=7, **changes)
    world.end(
        world.pod("trainer-a1-0"),
        termination(1, termination_message(1, "UnexpectedError", "boom", progress=foreign)),
    )
    world.step()
    assert (world.status.attempt, world.status.step) == (2, 0)
