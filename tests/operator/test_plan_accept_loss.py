"""A claim without what the job has saved to it: the job waits until it is back or a person gives it up."""

from datetime import timedelta
from typing import Any

import pytest

from grpo_api.contract.environment import Env
from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.plan.draft import EventDraft

from .fake_cluster import FakeCluster, report, spec, termination, termination_message

SENTENCE = "the job has saved a checkpoint of step 720, and /output/checkpoints has none"
MISSING = termination_message(75, "CheckpointMissing", SENTENCE)


def told(cluster: FakeCluster) -> str | None:
    """The step below which the newest trainer pod does not begin."""
    [container] = cluster.bodies[cluster.pod(f"trainer-a{cluster.status.attempt}-0")]["spec"]["containers"]
    return next((e["value"] for e in container["env"] if e["name"] == Env.CHECKPOINT_STEP), None)


def end_attempt(cluster: FakeCluster, *how: Any) -> None:
    cluster.end(cluster.pod(f"trainer-a{cluster.status.attempt}-0"), termination(*how))
    cluster.settle()


def run_next(cluster: FakeCluster) -> None:
    """The next attempt runs, after its pause if there is one."""
    cluster.vanish_deleted()
    cluster.now += timedelta(minutes=10)
    cluster.settle()
    cluster.run_all()
    cluster.settle()


@pytest.fixture
def missing() -> FakeCluster:
    """A job with the checkpoint of step 720, whose second attempt did not find it."""
    cluster = FakeCluster(spec(algorithm={"steps": 1000}, checkpoint={"claimName": "runs"})).start()
    assert told(cluster) is None
    cluster.progress = report(step=720, total_steps=1000, policy_version="1.720", checkpoint_step=720)
    cluster.settle()
    end_attempt(cluster, 1, "boom")
    run_next(cluster)
    assert (cluster.status.attempt, told(cluster)) == (2, "720")
    end_attempt(cluster, 75, MISSING)
    return cluster


def test_the_job_waits_with_both_ways_out_and_counts_nothing(missing: FakeCluster):
    for _ in range(12):
        run_next(missing)
        end_attempt(missing, 75, MISSING)
    assert (missing.status.phase, missing.status.highest_checkpoint_step) == (Phase.RESTARTING, 720)
    assert missing.status.restarts == 1
    running = missing.condition(ConditionType.RUNNING)
    assert running.status == "False"
    assert SENTENCE in running.message and "bring back what was on claim runs" in running.message
    assert "kubectl annotate grpojob copy grpo.dev/accept-checkpoint-loss=720" in running.message
    assert missing.plan().requeue_after == pytest.approx(600)


def test_a_claim_that_has_it_again_is_found_by_the_next_attempt(missing: FakeCluster):
    run_next(missing)
    missing.progress = report(
        attempt=3, step=721, resumed_from_step=720, policy_version="3.721", checkpoint_step=720
    )
    missing.settle()
    assert (missing.status.phase, missing.status.step) == (Phase.RUNNING, 721)


def test_the_annotation_accepts_the_loss_and_the_next_attempt_begins_at_once(missing: FakeCluster):
    for _ in range(3):
        run_next(missing)
        end_attempt(missing, 75, MISSING)
    missing.vanish_deleted()
    attempt = missing.status.attempt
    missing.accepted_loss = "720"
    events: list[EventDraft] = []
    for _ in range(4):
        events += missing.step().events
    assert missing.status.highest_checkpoint_step is None
    assert told(missing) is None and f"trainer-a{attempt}-0" in missing.names("trainer")
    [accepted] = [event for event in events if event.why.reason == "LossAccepted"]
    assert "step 720 is accepted as lost" in accepted.why.message and accepted.is_warning


@pytest.mark.parametrize("accepted", ["719", "yes", "None"])
def test_another_annotation_accepts_nothing(missing: FakeCluster, accepted: str):
    missing.accepted_loss = accepted
    run_next(missing)
    assert (missing.status.highest_checkpoint_step, told(missing)) == (720, "720")


def test_an_annotation_without_a_loss_gives_nothing_up():
    cluster = FakeCluster(spec(algorithm={"steps": 1000}, checkpoint={"claimName": "runs"})).start()
    cluster.accepted_loss = "720"
    cluster.progress = report(step=720, total_steps=1000, policy_version="1.720", checkpoint_step=720)
    cluster.settle()
    end_attempt(cluster, 1, "boom")
    run_next(cluster)
    assert (cluster.status.highest_checkpoint_step, told(cluster)) == (720, "720")


def test_a_checkpoint_that_was_put_aside_is_told_once():
    cluster = FakeCluster(spec(checkpoint={"claimName": "runs"})).start()
    sentence = (
        "damaged checkpoints were put aside: step-000006 (data is cut off); the attempt continues from 4"
    )
    events: list[EventDraft] = []
    for heartbeat in range(3):
        cluster.progress = report(set_aside=sentence, resumed_from_step=4, heartbeat=heartbeat)
        events += cluster.step().events
    assert [event.why.message for event in events if event.why.reason == "CheckpointSetAside"] == [sentence]
