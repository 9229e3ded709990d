"""What ends an attempt, what is named as the cause, and whether it counts."""

from datetime import timedelta

import pytest

from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, ErrorSignature, Phase
from grpo_operator.plan.policies.failure import SETTLE_SECONDS

from .fake_cluster import FakeCluster, spec, termination, termination_message


def two_nodes(max_restarts: int = 3) -> FakeCluster:
    return FakeCluster(spec(trainer={"numNodes": 2}, failurePolicy={"maxRestarts": max_restarts})).start()


def test_the_cause_ranks_above_the_broken_pipe_it_led_to():
    cluster = two_nodes()
    broken = termination_message(
        1, Reason.UNEXPECTED_ERROR, "RuntimeError: Connection closed by peer", is_effect=True
    )
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, broken, after=0))
    cluster.end(cluster.pod("trainer-a1-1"), termination(7, reason="OOMKilled", after=1))
    cluster.step()
    failure = cluster.status.last_failure
    assert failure is not None
    assert (failure.pod, failure.reason, failure.exit_code) == (cluster.pod("trainer-a1-1"), "OOMKilled", 7)
    assert (failure.role, failure.container, failure.node) == ("trainer", "trainer", "node-a")


def test_a_process_that_only_lost_a_peer_is_not_the_cause():
    cluster = two_nodes()
    lost = termination_message(1, Reason.PEER_LOST, "rank 0 lost rank 1", is_effect=True)
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, lost, after=0))
    cluster.end(cluster.pod("trainer-a1-1"), termination(1, "ZeroDivisionError", after=2))
    cluster.step()
    assert cluster.status.last_failure is not None
    assert cluster.status.last_failure.pod == cluster.pod("trainer-a1-1")


def test_an_effect_is_not_acted_on_before_the_other_pods_had_time_to_report():
    cluster = two_nodes()
    cluster.failing_since = cluster.now
    broken = termination_message(1, Reason.UNEXPECTED_ERROR, "Broken pipe", is_effect=True)
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, broken))
    plan = cluster.step()
    assert (cluster.status.attempt, plan.requeue_after) == (1, SETTLE_SECONDS)
    cluster.now += timedelta(seconds=SETTLE_SECONDS)
    cluster.step()
    assert cluster.status.attempt == 2


@pytest.mark.parametrize("code", [137, 143])
def test_an_eviction_that_is_reported_after_the_containers_ended_is_not_a_failure(code: int):
    cluster = FakeCluster().start()
    cluster.failing_since = cluster.now
    cluster.end(cluster.pod("trainer-a1-0"), termination(code))
    cluster.change(cluster.pod("trainer-a1-0"), is_settling=True)
    plan = cluster.step()
    assert (cluster.status.attempt, plan.requeue_after) == (1, SETTLE_SECONDS)
    evicted = ReasonMessage("Evicted", "The node was low on resource: memory.")
    cluster.change(cluster.pod("trainer-a1-0"), is_settling=False, disruption=evicted)
    cluster.step()
    assert cluster.status.last_failure is not None and cluster.status.last_failure.reason == "Evicted"
    assert (cluster.status.attempt, cluster.status.restarts, cluster.status.disruptions) == (2, 0, 1)


def test_an_end_that_its_node_never_reports_for_the_pod_is_acted_on_after_a_few_seconds():
    cluster = FakeCluster().start()
    cluster.failing_since = cluster.now
    cluster.end(cluster.pod("trainer-a1-0"), termination(137))
    cluster.change(cluster.pod("trainer-a1-0"), is_settling=True)
    cluster.step()
    cluster.now += timedelta(seconds=SETTLE_SECONDS)
    cluster.step()
    assert (cluster.status.attempt, cluster.status.restarts) == (2, 1)


def test_the_first_of_two_equal_causes_is_named():
    cluster = two_nodes()
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "late", after=2))
    cluster.end(cluster.pod("trainer-a1-1"), termination(1, "early", after=1))
    cluster.step()
    assert cluster.status.last_failure is not None
    assert cluster.status.last_failure.pod == cluster.pod("trainer-a1-1")


@pytest.mark.parametrize(
    ("code", "reason"), [(40, "UserError"), (41, "DataExhausted"), (42, "CheckpointCorrupt")]
)
def test_what_a_retry_cannot_cure_fails_the_job_at_once(code: int, reason: str):
    cluster = FakeCluster().start()
    sentence = "dataset.prompt: the file has no column `question`: name one of prompt, answer"
    cluster.end(cluster.pod("trainer-a1-0"), termination(code, termination_message(code, reason, sentence)))
    cluster.settle()
    assert (cluster.status.phase, cluster.status.restarts) == (Phase.FAILED, 0)
    failed = cluster.condition(ConditionType.FAILED)
    assert (failed.status, failed.reason, failed.message) == ("True", reason, sentence)
    assert cluster.condition(ConditionType.FINISHED).status == "True"
    assert cluster.status.completion_time == cluster.now


def test_an_engine_that_crashes_is_left_to_its_kubelet_and_explained():
    cluster = FakeCluster().start()
    cluster.change(
        cluster.pod("rollout-1-i0"),
        last_termination=termination(1, "ValueError: bad"),
        restarts=2,
        is_ready=False,
        start_problem=ReasonMessage("CrashLoopBackOff", "back-off 20s"),
    )
    cluster.settle()
    ready = cluster.condition(ConditionType.ROLLOUT_READY)
    assert ready.status == "False"
    assert "restarted 2 times" in ready.message and "ValueError: bad" in ready.message
    assert cluster.status.phase == Phase.RUNNING


@pytest.mark.parametrize(
    "happening",
    [
        {"disruption": ReasonMessage("PodDeleted", "deleted"), "is_deleting": True},
        {"disruption": ReasonMessage("EvictionByEvictionAPI", "drained"), "is_deleting": True},
        {"disruption": ReasonMessage("Evicted", "low on memory"), "phase": "Failed"},
    ],
    ids=["kubectl delete", "drain", "evicted by the kubelet"],
)
def test_a_disruption_restarts_the_gang_and_is_not_counted(happening: dict):
    cluster = FakeCluster(spec(failurePolicy={"maxRestarts": 0})).start()
    cluster.change(cluster.pod("trainer-a1-0"), **happening)
    cluster.settle()
    cluster.vanish_deleted()
    cluster.settle()
    assert (cluster.status.attempt, cluster.status.restarts, cluster.status.disruptions) == (2, 0, 1)
    assert "trainer-a2-0" in cluster.names("trainer")
    assert cluster.condition(ConditionType.RESTARTING).status == "True"


def test_a_stop_without_deletion_or_eviction_is_counted():
    cluster = FakeCluster(spec(failurePolicy={"maxRestarts": 1})).start()
    for attempt in (1, 2):
        cluster.end(
            cluster.pod(f"trainer-a{attempt}-0"),
            termination(143, termination_message(143, "Terminated", "stopped")),
        )
        cluster.settle()
        cluster.run_all()
        cluster.settle()
    assert (cluster.status.phase, cluster.status.restarts, cluster.status.disruptions) == (Phase.FAILED, 1, 0)
    assert cluster.status.last_failure is not None
    assert "liveness probe" in cluster.status.last_failure.message


def test_the_143_of_a_deleted_pods_peers_is_not_counted():
    cluster = two_nodes(max_restarts=0)
    cluster.change(
        cluster.pod("trainer-a1-0"),
        phase="Failed",
        termination=termination(143),
        disruption=ReasonMessage("PodDeleted", "deleted"),
        is_deleting=True,
    )
    cluster.end(cluster.pod("trainer-a1-1"), termination(143, after=-1))
    cluster.settle()
    assert (cluster.status.attempt, cluster.status.restarts, cluster.status.disruptions) == (2, 0, 1)


def test_the_broken_pipes_of_an_evicted_pods_peers_are_not_the_cause():
    cluster = two_nodes()
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "gloo: something odd"))
    cluster.change(
        cluster.pod("trainer-a1-1"),
        disruption=ReasonMessage("TaintManagerEviction", "drained"),
        is_deleting=True,
    )
    cluster.step()
    assert cluster.status.last_failure is not None
    assert (cluster.status.last_failure.reason, cluster.status.disruptions) == ("TaintManagerEviction", 1)


def test_an_hour_without_the_hub_uses_up_no_restart_and_names_the_hub_and_not_the_lost_peer():
    cluster = two_nodes(max_restarts=0)
    refused = "the Hub cannot be reached: let the pods reach it; the last error: Connection refused"
    for attempt in (1, 2, 3):
        first, second = (cluster.pod(f"trainer-a{attempt}-{index}") for index in (0, 1))
        lost = termination_message(75, Reason.PEER_LOST, "rank 0 is gone", is_effect=True)
        cluster.end(second, termination(75, lost, after=0))
        told = termination_message(75, Reason.HUB_UNREACHABLE, refused)
        cluster.end(first, termination(75, told, after=1))
        cluster.settle()
        assert cluster.status.last_failure is not None
        assert (cluster.status.last_failure.reason, cluster.status.attempt) == ("HubUnreachable", attempt + 1)
        cluster.now += timedelta(minutes=20)
        cluster.settle()
        cluster.run_all()
        cluster.settle()
    assert (cluster.status.phase, cluster.status.restarts) == (Phase.RUNNING, 0)


@pytest.mark.parametrize("reason", [Reason.HUB_UNREACHABLE, Reason.REWARD_SERVICE_UNREACHABLE])
def test_a_connection_that_somebody_outside_refused_is_a_cause_and_no_effect(reason: Reason):
    cluster = two_nodes()
    told = termination_message(75, reason, "it cannot be reached: Connection refused")
    cluster.end(cluster.pod("trainer-a1-0"), termination(75, told, after=0))
    cluster.end(cluster.pod("trainer-a1-1"), termination(1, "gloo: something odd", after=1))
    cluster.settle()
    assert cluster.status.last_failure is not None
    assert cluster.status.last_failure.reason == reason


def test_a_trainer_pod_that_vanished_from_a_complete_gang_ends_the_attempt():
    cluster = two_nodes()
    cluster.vanish(cluster.pod("trainer-a1-1"))
    cluster.step()
    assert cluster.status.attempt == 2
    assert cluster.status.last_failure is not None
    assert cluster.status.last_failure.reason == "PodDeleted"


def test_a_pod_still_to_be_made_is_made_and_not_taken_for_lost():
    cluster = FakeCluster(spec(trainer={"numNodes": 2}))
    cluster.step()
    cluster.vanish(cluster.pod("trainer-a1-1"))  # a crash between two creations
    cluster.step()
    assert (cluster.status.attempt, cluster.names("trainer")) == (1, ["trainer-a1-0", "trainer-a1-1"])


def test_of_a_container_that_wrote_nothing_the_end_of_its_log_is_told():
    cluster = FakeCluster().start()
    log = "\n".join(f"line {index}" for index in range(500)) + "\nthe last words"
    cluster.end(cluster.pod("trainer-a1-0"), termination(137, log))
    cluster.settle()
    failure = cluster.status.last_failure
    assert failure is not None and failure.message.endswith("the last words")
    assert "the end of its log: " in failure.message and len(failure.message) < 1000


def test_while_the_cause_is_not_known_yet_the_condition_does_not_say_that_pods_are_starting():
    cluster = two_nodes()
    cluster.failing_since = cluster.now
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "Broken pipe"))
    cluster.step()
    running = cluster.condition(ConditionType.RUNNING)
    assert (running.status, running.reason) == ("False", "UnexpectedError")
    assert "has ended" in running.message and "Broken pipe" in running.message
    assert cluster.status.phase == Phase.RUNNING


def test_the_attempt_after_one_whose_gpu_was_out_of_memory_has_half_the_budget_and_the_job_says_so():
    cluster = FakeCluster(spec(trainer={"microBatchTokens": 600})).start()
    sentence = "a GPU is out of memory after step 3 with 600 tokens at a time"
    told = termination_message(75, Reason.GPU_OUT_OF_MEMORY, sentence)
    cluster.end(cluster.pod("trainer-a1-0"), termination(75, told))
    cluster.step()
    status = cluster.status
    assert (status.attempt, status.restarts, status.micro_batch_tokens) == (2, 1, 300)
    assert status.last_failure is not None and status.last_failure.reason == "GPUOutOfMemory"
    assert sentence in cluster.condition(ConditionType.RESTARTING).message
    cluster.settle()
    assert [_budget(cluster, name) for name in ("trainer-a1-0", "trainer-a2-0")] == [None, "300"]
    cluster.end(cluster.pod("trainer-a2-0"), termination(75, told))
    cluster.step()
    assert cluster.status.micro_batch_tokens == 300


def test_a_second_time_without_gpu_memory_ends_the_job():
    cluster = FakeCluster().start()
    told = termination_message(40, Reason.GPU_OUT_OF_MEMORY, "a GPU is out of memory again: lower this")
    cluster.end(cluster.pod("trainer-a1-0"), termination(40, told))
    cluster.step()
    assert (cluster.status.phase, cluster.status.attempt) == (Phase.FAILED, 1)
    assert cluster.condition(ConditionType.FAILED).reason == "GPUOutOfMemory"


def _budget(cluster: FakeCluster, name: str) -> str | None:
    [container] = cluster.bodies[cluster.pod(name)]["spec"]["containers"]
    return next((e["value"] for e in container["env"] if e["name"] == "GRPO_MICRO_BATCH_TOKENS"), None)


BUG = ErrorSignature(type="TypeError", where="mine.reward:3", step=7)


def crash(cluster: FakeCluster, error: ErrorSignature | None = BUG, *, code: int = 1) -> None:
    """The trainer of the attempt ends by an error of Python, and what follows is done."""
    written = termination_message(code, "UnexpectedError", "TypeError in mine.reward:3: no", error=error)
    name = cluster.pod(f"trainer-a{cluster.status.attempt}-0")
    cluster.end(name, termination(code, written))
    cluster.settle()
    cluster.now += timedelta(seconds=60)  # the pause is over
    cluster.settle()
    cluster.run_all()
    cluster.settle()


def test_the_same_error_twice_in_a_row_at_the_same_step_ends_the_job_with_its_sentence():
    cluster = FakeCluster().start()
    crash(cluster)
    assert (cluster.status.attempt, cluster.status.last_error) == (2, BUG)
    crash(cluster)
    failed = cluster.condition(ConditionType.FAILED)
    assert (cluster.status.phase, failed.reason) == (Phase.FAILED, "RepeatedError")
    assert failed.message == (
        "the same error twice at step 7: TypeError in mine.reward:3: no; another attempt would end the same "
        "way"
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BUG.model_copy(update={"step": 8}), 1),
        (BUG.model_copy(update={"where": "mine.reward:4"}), 1),
        (BUG.model_copy(update={"type": "KeyError"}), 1),
        (None, 1),
        (BUG, 75),
        (BUG, 137),
    ],
    ids=["another step", "another line", "another type", "may pass", "exit code 75", "killed"],
)
def test_another_attempt_follows_another_end(error: ErrorSignature | None, code: int):
    cluster = FakeCluster(spec(failurePolicy={"maxRestarts": 9})).start()
    crash(cluster)
    crash(cluster, error, code=code)
    crash(cluster)  # not twice in a row
    assert (cluster.status.phase, cluster.status.attempt) == (Phase.RUNNING, 4)
