"""Which of several reports of a trainer the status shows."""

import pytest

from .fake_cluster import FakeCluster, report, spec, termination, termination_message


def test_newer_numbers_of_the_same_step_are_shown():
    cluster = FakeCluster().start()
    for rate in (1.0, 2.0):
        cluster.progress = report(tokens_per_second=rate)
        cluster.step()
    assert cluster.status.tokens_per_second == "2"


@pytest.mark.parametrize(("resumed_at", "shown"), [(7, ("0.123", "50")), (0, ("", ""))])
def test_the_numbers_of_the_last_step_stay_until_an_attempt_that_resumes_has_made_one(
    resumed_at: int, shown: tuple[str, str]
):
    cluster = FakeCluster().start()
    cluster.progress = report(step=7, policy_version="1.7", reward=0.1234, tokens_per_second=50.0)
    cluster.step()
    cluster.vanish(cluster.pod("trainer-a1-0"))
    cluster.settle()
    cluster.run_all()
    cluster.progress = report(
        attempt=2,
        step=resumed_at,
        resumed_from_step=resumed_at,
        policy_version=f"2.{resumed_at}",
        reward=None,
        tokens_per_second=None,
    )
    cluster.settle()
    status = cluster.status
    assert (status.attempt, status.step) == (2, resumed_at)
    assert (status.reward, status.tokens_per_second) == shown


def test_how_many_steps_epochs_are_is_what_the_trainer_says():
    cluster = FakeCluster(spec(algorithm={"epochs": 2})).start()
    assert (cluster.status.total_steps, cluster.status.progress) == (0, "0/?")
    cluster.progress = report(step=0, total_steps=0)
    cluster.step()
    assert cluster.status.progress == "0/?"
    cluster.progress = report(step=3, total_steps=12, heartbeat=9, policy_version="1.3")
    cluster.step()
    assert (cluster.status.total_steps, cluster.status.progress) == (12, "3/12")
    # the next attempt counts them again, and until then what is known stays
    cluster.progress = report(step=4, total_steps=0, heartbeat=10, policy_version="1.4")
    cluster.step()
    assert (cluster.status.total_steps, cluster.status.progress) == (12, "4/12")


def test_a_step_whose_completions_have_no_reward_has_none_and_the_highest_step_is_kept():
    cluster = FakeCluster(spec(checkpoint={"claimName": "out"})).start()
    cluster.progress = report(step=9, reward=0.5, policy_version="1.9", checkpoint_step=8)
    cluster.settle()
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.settle()
    cluster.run_all()
    cluster.progress = report(
        attempt=2, step=9, resumed_from_step=8, reward=None, policy_version="2.9", checkpoint_step=8
    )
    cluster.settle()
    assert (cluster.status.attempt, cluster.status.reward, cluster.status.highest_step) == (2, "", 9)
    assert cluster.status.policy_version == "2.9"


def test_a_checkpoint_that_was_committed_within_a_step_is_shown():
    cluster = FakeCluster().start()
    for checkpoint_step in (None, 3, 4):
        cluster.progress = report(checkpoint_step=checkpoint_step)
        cluster.step()
        assert cluster.status.checkpoint_step == checkpoint_step


def test_the_next_attempt_has_time_for_three_saves_as_long_as_the_newest():
    cluster = FakeCluster().start()
    cluster.progress = report(checkpoint_step=4, checkpoint_seconds=100)
    cluster.step()
    assert cluster.status.checkpoint_seconds == 100
    # what an attempt reports that has not saved yet
    cluster.progress = report(step=5, policy_version="1.5", checkpoint_step=4)
    cluster.step()
    assert cluster.status.checkpoint_seconds == 100
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.settle()
    first, second = (cluster.bodies[cluster.pod(f"trainer-a{attempt}-0")]["spec"] for attempt in (1, 2))
    grace = "terminationGracePeriodSeconds"
    assert (first[grace], second[grace]) == (60, 300)


def test_until_a_job_has_saved_its_pods_have_the_time_that_a_save_of_its_model_is_estimated_to_take():
    large = {"model": {"source": "hf://Qwen/Qwen2.5-7B"}, "checkpoint": {"claimName": "runs"}}
    for saved, second in ((None, 840), (4, 60)):  # a save that is not told took no more than 20 s
        cluster = FakeCluster(spec(**large)).start()
        cluster.progress = report(checkpoint_step=saved)
        cluster.step()
        cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
        cluster.settle()
        pods = (cluster.bodies[cluster.pod(f"trainer-a{attempt}-0")]["spec"] for attempt in (1, 2))
        assert [pod["terminationGracePeriodSeconds"] for pod in pods] == [840, second]


def test_what_a_trainer_reported_at_its_end_replaces_what_it_reported_at_the_last_poll():
    cluster = FakeCluster().start()
    cluster.progress = report(step=6, policy_version="1.6")
    at_its_end = report(step=7, policy_version="1.7", checkpoint_step=7)
    cluster.end(
        cluster.pod("trainer-a1-0"),
        termination(1, termination_message(1, "UnexpectedError", "boom", progress=at_its_end)),
    )
    cluster.step()
    assert (cluster.status.attempt, cluster.status.step, cluster.status.checkpoint_step) == (2, 7, 7)


@pytest.mark.parametrize("changes", [{"job_uid": "another"}, {"attempt": 9}])
def test_a_termination_message_about_another_job_or_attempt_is_ignored(changes: dict):
    cluster = FakeCluster().start()
    foreign = report(step=7, **changes)
    cluster.end(
        cluster.pod("trainer-a1-0"),
        termination(1, termination_message(1, "UnexpectedError", "boom", progress=foreign)),
    )
    cluster.step()
    assert (cluster.status.attempt, cluster.status.step) == (2, 0)
