"""What ends an attempt, what is named as the cause, and what follows."""

from dataclasses import replace
from datetime import timedelta

import pytest

from grpo_api.contract.exit_codes import PEER_LOST_REASON
from grpo_api.contract.progress import TrainerState
from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.observed import Trouble
from grpo_operator.plan.failure import SETTLE_SECONDS

from .fake_world import FakeWorld, ending, last_words, report, spec


def two_nodes(max_restarts: int = 3) -> FakeWorld:
    return FakeWorld(spec(trainer={"numNodes": 2}, failurePolicy={"maxRestarts": max_restarts})).start()


def test_a_failed_trainer_restarts_the_whole_gang():
    world = two_nodes()
    world.end(world.pod("trainer-a1-1"), ending(1, reason="OOMKilled"))
    world.step()
    assert (world.status.attempt, world.status.restarts, world.status.phase) == (2, 1, Phase.RESTARTING)
    assert world.names("trainer", is_deleting=True) == ["trainer-a1-0"]
    assert world.names("rollout") == ["rollout-0-i0", "rollout-1-i0"]


def test_the_next_attempt_waits_until_every_older_pod_is_gone():
    world = two_nodes()
    world.end(world.pod("trainer-a1-1"), ending(1, reason="OOMKilled"))
    world.settle()
    assert not [name for name in world.names("trainer") if "-a2-" in name]
    assert "must end first" in world.condition(ConditionType.RUNNING).message
    world.vanish_deleted()
    world.step()
    assert world.condition(ConditionType.RUNNING).reason == "CreatingPods"  # nothing is waited for any more
    world.settle()
    assert [name for name in world.names("trainer") if "-a2-" in name] == ["trainer-a2-0", "trainer-a2-1"]


def test_an_ended_pod_stays_for_its_logs_until_the_next_attempt_is_over():
    world = FakeWorld().start()
    world.end(world.pod("trainer-a1-0"), ending(1, "boom"))
    world.settle()
    assert world.names("trainer") == ["trainer-a1-0", "trainer-a2-0"]
    world.run_all()
    world.settle()
    world.end(world.pod("trainer-a2-0"), ending(1, "boom"))
    world.settle()
    assert world.names("trainer", is_deleting=True) == ["trainer-a1-0"]


def test_the_cause_ranks_above_the_broken_pipe_it_led_to():
    world = two_nodes()
    world.end(world.pod("trainer-a1-0"), ending(1, "RuntimeError: Connection closed by peer", after=0))
    world.end(world.pod("trainer-a1-1"), ending(7, reason="OOMKilled", after=1))
    world.step()
    failure = world.status.last_failure
    assert failure is not None
    assert (failure.pod, failure.reason, failure.exit_code) == (world.pod("trainer-a1-1"), "OOMKilled", 7)
    assert (failure.role, failure.container, failure.node) == ("trainer", "trainer", "node-a")


def test_a_process_that_only_lost_a_peer_is_not_the_cause():
    world = two_nodes()
    lost = last_words(1, PEER_LOST_REASON, "rank 0 lost rank 1")
    world.end(world.pod("trainer-a1-0"), ending(1, lost, after=0))
    world.end(world.pod("trainer-a1-1"), ending(1, "ZeroDivisionError", after=2))
    world.step()
    assert world.status.last_failure is not None
    assert world.status.last_failure.pod == world.pod("trainer-a1-1")


def test_an_effect_is_not_believed_before_the_others_had_time_to_report():
    world = two_nodes()
    world.failing_since = world.now
    world.end(world.pod("trainer-a1-0"), ending(1, "Broken pipe"))
    plan = world.step()
    assert (world.status.attempt, plan.requeue_after) == (1, SETTLE_SECONDS)
    world.now += timedelta(seconds=SETTLE_SECONDS)
    world.step()
    assert world.status.attempt == 2


@pytest.mark.parametrize("code", [137, 143])
def test_an_eviction_that_is_told_after_the_end_it_brought_is_not_a_failure(code: int):
    world = FakeWorld().start()
    world.failing_since = world.now
    world.end(world.pod("trainer-a1-0"), ending(code))
    world.change(world.pod("trainer-a1-0"), is_settling=True)
    plan = world.step()
    assert (world.status.attempt, plan.requeue_after) == (1, SETTLE_SECONDS)
    evicted = Trouble("Evicted", "The node was low on resource: memory.")
    world.change(world.pod("trainer-a1-0"), is_settling=False, disruption=evicted)
    world.step()
    assert world.status.last_failure is not None and world.status.last_failure.reason == "Evicted"
    assert (world.status.attempt, world.status.restarts, world.status.disruptions) == (2, 0, 1)


def test_an_end_whose_verdict_never_comes_is_believed_after_a_moment():
    world = FakeWorld().start()
    world.failing_since = world.now
    world.end(world.pod("trainer-a1-0"), ending(137))
    world.change(world.pod("trainer-a1-0"), is_settling=True)
    world.step()
    world.now += timedelta(seconds=SETTLE_SECONDS)
    world.step()
    assert (world.status.attempt, world.status.restarts) == (2, 1)


def test_the_first_of_two_equal_causes_is_named():
    world = two_nodes()
    world.end(world.pod("trainer-a1-0"), ending(1, "late", after=2))
    world.end(world.pod("trainer-a1-1"), ending(1, "early", after=1))
    world.step()
    assert world.status.last_failure is not None
    assert world.status.last_failure.pod == world.pod("trainer-a1-1")


@pytest.mark.parametrize(
    ("code", "reason"), [(40, "UserError"), (41, "DataExhausted"), (42, "CheckpointCorrupt")]
)
def test_what_a_retry_cannot_cure_fails_the_job_at_once(code: int, reason: str):
    world = FakeWorld().start()
    sentence = "dataset.prompt: the file has no column `question`: name one of prompt, answer"
    world.end(world.pod("trainer-a1-0"), ending(code, last_words(code, reason, sentence)))
    world.settle()
    assert (world.status.phase, world.status.restarts) == (Phase.FAILED, 0)
    failed = world.condition(ConditionType.FAILED)
    assert (failed.status, failed.reason, failed.message) == ("True", reason, sentence)
    assert world.condition(ConditionType.FINISHED).status == "True"
    assert world.status.completion_time == world.now


def test_an_engine_that_says_40_fails_the_job_although_it_is_restarted():
    world = FakeWorld().start()
    words = last_words(40, "UserError", "engine.maxModelLen (64) is longer than the model allows (32)")
    world.change(world.pod("rollout-1-i0"), last_ending=ending(40, words), restarts=1, is_ready=False)
    world.settle()
    assert world.condition(ConditionType.FAILED).message.startswith("engine.maxModelLen")
    assert world.status.last_failure is not None
    assert world.status.last_failure.role == "rollout"
    assert world.names("rollout") == []
    assert world.names("trainer", is_deleting=True) == ["trainer-a1-0"]


def test_an_engine_that_crashes_is_left_to_its_kubelet_and_explained():
    world = FakeWorld().start()
    world.change(
        world.pod("rollout-1-i0"),
        last_ending=ending(1, "ValueError: bad"),
        restarts=2,
        is_ready=False,
        trouble=Trouble("CrashLoopBackOff", "back-off 20s"),
    )
    world.settle()
    ready = world.condition(ConditionType.ROLLOUT_READY)
    assert ready.status == "False"
    assert "restarted 2 times" in ready.message and "ValueError: bad" in ready.message
    assert world.status.phase == Phase.RUNNING


def test_restarts_end_at_max_restarts_with_the_cause_in_the_sentence():
    world = FakeWorld(spec(failurePolicy={"maxRestarts": 1})).start()
    world.end(world.pod("trainer-a1-0"), ending(1, "boom"))
    world.settle()
    world.run_all()
    world.end(world.pod("trainer-a2-0"), ending(75, "flaky network"))
    world.settle()
    assert (world.status.phase, world.status.attempt, world.status.restarts) == (Phase.FAILED, 2, 1)
    failed = world.condition(ConditionType.FAILED)
    assert failed.reason == "TransientError"
    assert "maxRestarts (1)" in failed.message and "flaky network" in failed.message


@pytest.mark.parametrize(
    "happening",
    [
        {"disruption": Trouble("PodDeleted", "deleted"), "is_deleting": True},
        {"disruption": Trouble("EvictionByEvictionAPI", "drained"), "is_deleting": True},
        {"disruption": Trouble("Evicted", "low on memory"), "phase": "Failed"},
    ],
    ids=["kubectl delete", "drain", "evicted by the kubelet"],
)
def test_a_disruption_restarts_the_gang_and_is_not_counted(happening: dict):
    world = FakeWorld(spec(failurePolicy={"maxRestarts": 0})).start()
    world.change(world.pod("trainer-a1-0"), **happening)
    world.settle()
    world.vanish_deleted()
    world.settle()
    assert (world.status.attempt, world.status.restarts, world.status.disruptions) == (2, 0, 1)
    assert "trainer-a2-0" in world.names("trainer")
    assert world.condition(ConditionType.RESTARTING).status == "True"


def test_a_stop_that_nobody_asked_for_is_counted():
    world = FakeWorld(spec(failurePolicy={"maxRestarts": 1})).start()
    for attempt in (1, 2):
        world.end(world.pod(f"trainer-a{attempt}-0"), ending(143, last_words(143, "Terminated", "stopped")))
        world.settle()
        world.run_all()
        world.settle()
    assert (world.status.phase, world.status.restarts, world.status.disruptions) == (Phase.FAILED, 1, 0)
    assert world.status.last_failure is not None
    assert "liveness probe" in world.status.last_failure.message


def test_the_143_of_a_deleted_pods_peers_is_not_counted():
    world = two_nodes(max_restarts=0)
    world.change(
        world.pod("trainer-a1-0"),
        phase="Failed",
        ending=ending(143),
        disruption=Trouble("PodDeleted", "deleted"),
        is_deleting=True,
    )
    world.end(world.pod("trainer-a1-1"), ending(143, after=-1))
    world.settle()
    assert (world.status.attempt, world.status.restarts, world.status.disruptions) == (2, 0, 1)


def test_the_broken_pipes_of_an_evicted_pods_peers_are_not_the_cause():
    world = two_nodes()
    world.end(world.pod("trainer-a1-0"), ending(1, "gloo: something odd"))
    world.change(
        world.pod("trainer-a1-1"), disruption=Trouble("TaintManagerEviction", "drained"), is_deleting=True
    )
    world.step()
    assert world.status.last_failure is not None
    assert (world.status.last_failure.reason, world.status.disruptions) == ("TaintManagerEviction", 1)


def test_a_trainer_pod_that_vanished_from_a_complete_gang_ends_the_attempt():
    world = two_nodes()
    world.vanish(world.pod("trainer-a1-1"))
    world.step()
    assert world.status.attempt == 2
    assert world.status.last_failure is not None
    assert world.status.last_failure.reason == "PodDeleted"


def test_a_pod_still_to_be_made_is_made_and_not_taken_for_lost():
    world = FakeWorld(spec(trainer={"numNodes": 2}))
    world.step()
    world.vanish(world.pod("trainer-a1-1"))  # a crash between two creations
    world.step()
    assert (world.status.attempt, world.names("trainer")) == (1, ["trainer-a1-0", "trainer-a1-1"])


def test_attempts_that_fail_quickly_are_spaced_out():
    world = FakeWorld().start()
    world.end(world.pod("trainer-a1-0"), ending(1, "boom"))
    world.settle()
    world.run_all()
    world.settle()
    world.end(world.pod("trainer-a2-0"), ending(1, "boom"))
    plan = world.step()
    assert plan.requeue_after == 5.0
    assert "trainer-a3-0" not in world.names("trainer")
    world.now += timedelta(seconds=5)
    world.step()
    assert "trainer-a3-0" in world.names("trainer")


@pytest.mark.parametrize(
    ("seconds", "checkpoint_step", "has_pause"),
    [(0, None, True), (299, None, True), (300, None, False), (0, 3, False)],
    ids=["at once", "soon", "after a long life", "after a checkpoint"],
)
def test_an_attempt_that_got_on_ends_the_row_of_failures(
    seconds: int, checkpoint_step: int | None, has_pause: bool
):
    world = FakeWorld().start()
    world.end(world.pod("trainer-a1-0"), ending(1, "boom"))
    world.settle()
    world.run_all()
    world.settle()
    world.now += timedelta(seconds=seconds)
    world.progress = report(attempt=2, policy_version="2.4", checkpoint_step=checkpoint_step)
    world.settle()
    world.end(world.pod("trainer-a2-0"), ending(1, "boom"))
    world.step()
    assert ("trainer-a3-0" not in world.names("trainer")) is has_pause


def test_a_restarted_operator_takes_the_failures_before_it_for_a_row():
    world = FakeWorld().start()
    world.end(world.pod("trainer-a1-0"), ending(1, "boom"))
    world.settle()
    world.run_all()
    world.settle()
    world.streak = None
    world.end(world.pod("trainer-a2-0"), ending(1, "boom"))
    world.step()
    assert "trainer-a3-0" not in world.names("trainer")


def test_a_restart_is_over_when_the_new_gang_runs():
    world = FakeWorld().start()
    world.end(world.pod("trainer-a1-0"), ending(1, "boom"))
    world.settle()
    world.run_all()
    world.settle()
    assert world.condition(ConditionType.RESTARTING).status == "False"
    assert world.status.phase == Phase.RUNNING


def test_reports_of_an_earlier_attempt_are_not_believed():
    world = FakeWorld().start()
    world.end(world.pod("trainer-a1-0"), ending(1, "boom"))
    world.settle()
    world.run_all()
    world.progress = report(step=9)
    world.settle()
    assert world.status.step == 0


@pytest.mark.parametrize(
    "happening",
    [{"is_deleting": True}, {"phase": "Failed", "is_ready": False}],
    ids=["deleted", "failed"],
)
def test_a_lost_rollout_pod_is_replaced_at_once_under_a_new_name(happening: dict):
    world = FakeWorld().start()
    world.change(world.pod("rollout-1-i0"), **happening)
    world.step()
    assert "rollout-1-i1" in world.names("rollout")
    assert (world.status.attempt, world.status.phase) == (1, Phase.RUNNING)
    world.vanish_deleted()
    world.settle()
    assert world.names("rollout") == ["rollout-0-i0", "rollout-1-i1"]


def test_rollout_pods_that_their_node_refuses_at_once_are_replaced_with_pauses_and_explained():
    world = FakeWorld().start()
    refused = Trouble("OutOfcpu", "Node didn't have enough resource: cpu")
    world.change(
        world.pod("rollout-1-i0"), phase="Failed", is_ready=False, trouble=refused, created_at=world.now
    )
    plan = world.step()
    assert (plan.requeue_after, world.names("rollout")) == (10.0, ["rollout-0-i0", "rollout-1-i0"])
    ready = world.condition(ConditionType.ROLLOUT_READY)
    assert (ready.status, ready.reason) == ("False", "OutOfcpu")
    world.now += timedelta(seconds=10)
    world.step()
    assert world.names("rollout") == ["rollout-0-i0", "rollout-1-i1"]


def test_of_two_pods_of_one_replica_the_ready_one_stays():
    world = FakeWorld().start()
    first = world.pod("rollout-0-i0")
    world.pods[world.pod("rollout-0-i1")] = replace(
        world.pods[first], name=world.pod("rollout-0-i1"), uid="twin", position=(0, 1), is_ready=False
    )
    world.step()
    assert world.names("rollout") == ["rollout-0-i0", "rollout-1-i0"]
    assert world.names("rollout", is_deleting=True) == ["rollout-0-i1"]


def test_a_job_is_complete_when_pod_0_has_done_every_step():
    world = two_nodes()
    final = report(step=10, reward=0.9876, state=TrainerState.DONE)
    world.end(world.pod("trainer-a1-0"), ending(0, last_words(0, "Done", "done", progress=final)))
    plan = world.step()
    assert plan.requeue_after is not None  # the other pod may end by itself
    world.end(world.pod("trainer-a1-1"), ending(1, "Connection closed by peer"))
    world.settle()
    assert (world.status.phase, world.status.progress, world.status.reward) == (
        Phase.SUCCEEDED,
        "10/10",
        "0.988",
    )
    assert world.condition(ConditionType.COMPLETE).status == "True"
    assert world.condition(ConditionType.READY).status == "True"
    assert world.condition(ConditionType.FINISHED).status == "True"
    assert world.status.last_failure is None
    assert world.names("rollout") == []
    assert world.names("trainer") == ["trainer-a1-0", "trainer-a1-1"]


def test_a_finished_job_stays_finished_whatever_happens_to_its_pods():
    world = FakeWorld().start()
    world.end(world.pod("trainer-a1-0"), ending(0))
    world.settle()
    world.vanish(*list(world.pods))
    plan = world.plan()
    assert (plan.status, plan.create) == (world.status, ())


def test_a_trainer_that_is_done_is_done_even_if_a_helper_of_it_ran_out_of_memory():
    world = FakeWorld().start()
    world.end(world.pod("trainer-a1-0"), ending(0, reason="OOMKilled"))
    world.settle()
    assert world.status.phase == Phase.SUCCEEDED


def test_a_pod_that_was_evicted_after_it_had_done_its_part_is_no_failure():
    world = two_nodes()
    world.change(
        world.pod("trainer-a1-1"),
        phase="Failed",
        ending=ending(0),
        disruption=Trouble("Evicted", "low on memory"),
    )
    world.settle()
    assert world.status.attempt == 1


def test_a_gang_of_which_one_pod_has_done_its_part_still_runs():
    world = two_nodes()
    world.end(world.pod("trainer-a1-1"), ending(0))
    world.settle()
    assert world.status.phase == Phase.RUNNING
    assert world.condition(ConditionType.RUNNING).status == "True"


def test_while_the_cause_is_still_looked_for_nobody_is_told_that_pods_are_starting():
    world = two_nodes()
    world.failing_since = world.now
    world.end(world.pod("trainer-a1-0"), ending(1, "Broken pipe"))
    world.step()
    running = world.condition(ConditionType.RUNNING)
    assert (running.status, running.reason) == ("False", "UnexpectedError")
    assert "has ended" in running.message and "Broken pipe" in running.message
    assert world.status.phase == Phase.RUNNING
