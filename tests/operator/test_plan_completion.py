"""When a job is complete, and what becomes of its pods then."""

from datetime import timedelta

from grpo_api.contract.progress import TrainerState
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.plan.policies.completion import TEARDOWN_SECONDS

from .fake_cluster import FakeCluster, report, spec, termination, termination_message


def two_nodes() -> FakeCluster:
    return FakeCluster(spec(trainer={"numNodes": 2})).start()


def test_a_job_is_complete_when_pod_0_has_done_every_step():
    cluster = two_nodes()
    final = report(step=10, reward=0.9876, state=TrainerState.DONE)
    cluster.end(
        cluster.pod("trainer-a1-0"), termination(0, termination_message(0, "Done", "done", progress=final))
    )
    plan = cluster.step()
    assert plan.requeue_after is not None  # the other pod may end by itself
    cluster.end(cluster.pod("trainer-a1-1"), termination(1, "Connection closed by peer"))
    cluster.settle()
    assert (cluster.status.phase, cluster.status.progress, cluster.status.reward) == (
        Phase.SUCCEEDED,
        "10/10",
        "0.988",
    )
    assert cluster.condition(ConditionType.COMPLETE).status == "True"
    assert cluster.condition(ConditionType.READY).status == "True"
    assert cluster.condition(ConditionType.FINISHED).status == "True"
    assert cluster.status.last_failure is None
    assert cluster.names("rollout") == []
    assert cluster.names("trainer") == ["trainer-a1-0", "trainer-a1-1"]


def test_a_finished_job_stays_finished_whatever_happens_to_its_pods():
    cluster = FakeCluster().start()
    cluster.end(cluster.pod("trainer-a1-0"), termination(0))
    cluster.settle()
    cluster.vanish(*list(cluster.pods))
    plan = cluster.plan()
    assert (plan.status, plan.create) == (cluster.status, ())


def test_scaling_a_finished_job_is_told_to_change_nothing():
    cluster = FakeCluster(spec(rollout={"replicas": 1})).start()
    cluster.end(cluster.pod("trainer-a1-0"), termination(0))
    cluster.settle()
    before = cluster.condition(ConditionType.ROLLOUT_READY).message
    assert "changes nothing" not in before
    cluster.spec, cluster.generation = spec(rollout={"replicas": 3}), cluster.generation + 1
    plan = cluster.step()
    assert plan.create == () and cluster.names("rollout") == []
    told = cluster.condition(ConditionType.ROLLOUT_READY).message
    assert told.startswith(before) and "that changes nothing" in told
    cluster.now += timedelta(hours=1)
    cluster.step()
    assert cluster.condition(ConditionType.ROLLOUT_READY).message == told, "it stays said"


def test_a_trainer_that_is_done_is_done_even_if_a_helper_of_it_ran_out_of_memory():
    cluster = FakeCluster().start()
    cluster.end(cluster.pod("trainer-a1-0"), termination(0, reason="OOMKilled"))
    cluster.settle()
    assert cluster.status.phase == Phase.SUCCEEDED


def test_a_pod_that_was_evicted_after_it_had_done_its_part_is_no_failure():
    cluster = two_nodes()
    cluster.change(
        cluster.pod("trainer-a1-1"),
        phase="Failed",
        termination=termination(0),
        disruption=ReasonMessage("Evicted", "low on memory"),
    )
    cluster.settle()
    assert cluster.status.attempt == 1


def test_a_gang_of_which_one_pod_has_done_its_part_still_runs():
    cluster = two_nodes()
    cluster.end(cluster.pod("trainer-a1-1"), termination(0))
    cluster.settle()
    assert cluster.status.phase == Phase.RUNNING
    assert cluster.condition(ConditionType.RUNNING).status == "True"


def test_the_other_pods_have_a_minute_to_end_and_are_then_stopped():
    cluster = two_nodes()
    cluster.end(cluster.pod("trainer-a1-0"), termination(0))
    cluster.now += timedelta(seconds=TEARDOWN_SECONDS - 1)
    assert cluster.step().requeue_after == 1.0
    assert cluster.status.phase == Phase.RUNNING
    cluster.now += timedelta(seconds=1)
    cluster.settle()
    assert cluster.status.phase == Phase.SUCCEEDED
    assert cluster.names("trainer", is_deleting=True) == ["trainer-a1-1"]
    assert (cluster.status.trainer.ready, cluster.status.trainer.summary) == (0, "0/0")


def test_a_pod_that_is_being_deleted_is_not_waited_for():
    cluster = two_nodes()
    cluster.change(
        cluster.pod("trainer-a1-1"), is_deleting=True, disruption=ReasonMessage("PodDeleted", "deleted")
    )
    cluster.end(cluster.pod("trainer-a1-0"), termination(0))
    cluster.step()
    assert cluster.status.phase == Phase.SUCCEEDED
