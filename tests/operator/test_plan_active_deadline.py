"""activeDeadlineSeconds: a job that has been active for too long saves a checkpoint and fails."""

from datetime import timedelta

from grpo_api.contract.progress import TrainerState
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, Phase

from .fake_cluster import NOW, FakeCluster, report, spec, termination, termination_message
from .partly_bound import give_back, half_bound
from .test_plan_suspend import resume, suspend

DEADLINE = 3600
LIMITED = {"activeDeadlineSeconds": DEADLINE, "checkpoint": {"claimName": "runs"}}


def training() -> FakeCluster:
    cluster = FakeCluster(spec(**LIMITED)).start()
    cluster.progress = report()
    cluster.settle()
    return cluster


def late(cluster: FakeCluster, *, seconds: float = DEADLINE) -> FakeCluster:
    cluster.now = NOW + timedelta(seconds=seconds)
    cluster.settle()
    return cluster


def test_the_job_is_planned_again_at_the_deadline_and_nothing_happens_before():
    cluster = late(training(), seconds=DEADLINE - 1)
    assert (cluster.status.phase, cluster.plan().requeue_after) == (Phase.RUNNING, 1)
    assert cluster.names("trainer") == ["trainer-a1-0"]


def test_the_pods_save_a_checkpoint_before_the_job_fails():
    cluster = late(training())
    assert (cluster.running(), cluster.status.phase) == ([], Phase.RUNNING)
    running = cluster.condition(ConditionType.RUNNING)
    assert running.reason == "ActiveDeadlineExceeded" and "saves a checkpoint" in running.message
    final = report(step=5, checkpoint_step=5, state=TrainerState.STOPPING)
    said = termination_message(143, "Terminated", "asked to stop", progress=final)
    cluster.end(cluster.pod("trainer-a1-0"), termination(143, said))
    cluster.settle()
    assert (cluster.status.phase, cluster.status.attempt) == (Phase.RUNNING, 1), "engines have not ended"
    cluster.vanish_deleted()
    cluster.settle()
    assert (cluster.status.phase, cluster.status.attempt) == (Phase.FAILED, 1)
    failed = cluster.condition(ConditionType.FAILED)
    assert failed.reason == "ActiveDeadlineExceeded"
    assert failed.message == (
        "the job has been active for longer than activeDeadlineSeconds (3600); with resumeFrom.job: copy "
        "another job continues from its newest checkpoint, of step 5 or later"
    )
    assert cluster.status.last_failure is not None
    assert cluster.status.last_failure.reason == "ActiveDeadlineExceeded"


def test_a_job_that_completes_while_it_saves_has_succeeded():
    cluster = late(training())
    done = report(step=10, checkpoint_step=10, state=TrainerState.DONE)
    said = termination_message(0, "Done", "", progress=done)
    cluster.end(cluster.pod("trainer-a1-0"), termination(0, said))
    cluster.settle()
    assert cluster.status.phase is Phase.SUCCEEDED


def test_the_time_in_which_the_job_is_suspended_does_not_count():
    cluster = late(training(), seconds=600)
    suspend(cluster).settle()
    cluster.vanish_deleted()
    late(cluster, seconds=600 + 10 * DEADLINE)
    assert cluster.status.phase is Phase.SUSPENDED
    resume(cluster).settle()
    assert cluster.status.suspended_seconds == 10 * DEADLINE
    cluster.run_all()
    cluster.progress = report(attempt=2, policy_version="2.4")
    cluster.settle()
    late(cluster, seconds=10 * DEADLINE + DEADLINE - 1)
    assert cluster.running() != []
    late(cluster, seconds=10 * DEADLINE + DEADLINE)
    assert cluster.running() == []


def test_a_job_that_is_suspended_when_its_deadline_passes_unseen_is_suspended():
    cluster = suspend(training())
    late(cluster, seconds=2 * DEADLINE)
    assert cluster.status.phase is Phase.SUSPENDED


def test_a_job_that_has_given_its_nodes_back_fails_at_once():
    cluster = half_bound(spec(**LIMITED, trainer={"numNodes": 2}))
    give_back(cluster)
    cluster.vanish_deleted()
    late(cluster)
    assert cluster.status.phase is Phase.FAILED
    assert cluster.condition(ConditionType.FAILED).message.endswith("activeDeadlineSeconds (3600)")


def test_a_pod_on_a_lost_node_does_not_keep_the_job_from_its_end():
    cluster = late(training())
    cluster.vanish(cluster.pod("rollout-0-i0"), cluster.pod("rollout-1-i0"))
    cluster.change(cluster.pod("trainer-a1-0"), must_end_by=cluster.now + timedelta(seconds=60))
    cluster.settle()
    wait = cluster.plan().requeue_after
    assert (cluster.status.phase, wait) == (Phase.RUNNING, 120)
    late(cluster, seconds=DEADLINE + 120)
    assert cluster.status.phase is Phase.FAILED


def test_a_deadline_that_is_raised_in_time_is_the_one_that_counts():
    cluster = training()
    cluster.spec = spec(**LIMITED | {"activeDeadlineSeconds": 2 * DEADLINE})
    assert late(cluster).status.phase is Phase.RUNNING
    assert cluster.running() != []


def test_whatever_happens_once_the_deadline_is_over_the_job_fails_by_it():
    """Another operator, or this one after its clock was set, is earlier; somebody raises the field and has
    the job suspended."""
    cluster = late(training())
    cluster.spec = spec(**LIMITED | {"activeDeadlineSeconds": 2 * DEADLINE})
    suspend(cluster)
    late(cluster, seconds=DEADLINE - 3)
    gone = cluster.pod("trainer-a1-0")
    cluster.change(gone, disruption=ReasonMessage("PodDeleted", "it was deleted"))
    cluster.settle()
    assert (cluster.status.phase, cluster.status.attempt) == (Phase.RUNNING, 1)
    cluster.vanish_deleted()
    cluster.settle()
    assert (cluster.status.phase, cluster.status.disruptions) == (Phase.FAILED, 0)
    failed = cluster.condition(ConditionType.FAILED)
    assert failed.message.startswith("the job has been active for longer than activeDeadlineSeconds (3600)")
    assert (cluster.status.stopping, cluster.status.suspension) == (None, None)


def test_the_decision_is_in_status_before_a_pod_is_deleted():
    cluster = training()
    cluster.now = NOW + timedelta(seconds=DEADLINE)
    plan = cluster.plan()
    assert plan.status.stopping is not None and plan.status.stopping.since == cluster.now
    assert len(plan.delete) == 3


def lose_the_stored_spec(cluster: FakeCluster) -> None:
    cluster.stored_spec, cluster.spec = None, spec(**LIMITED, algorithm={"steps": 99})


def test_the_deadline_holds_for_a_job_that_is_left_alone():
    cluster = training()
    lose_the_stored_spec(cluster)
    cluster.settle()
    assert cluster.condition(ConditionType.READY).reason == "RevisionLost"
    assert cluster.plan().requeue_after == DEADLINE
    late(cluster)
    assert cluster.running() == []
    assert cluster.condition(ConditionType.READY).reason == "ActiveDeadlineExceeded"
    cluster.vanish_deleted()
    cluster.settle()
    assert cluster.status.phase is Phase.FAILED


def test_what_the_job_ran_may_be_lost_while_its_pods_end():
    cluster = late(training())
    lose_the_stored_spec(cluster)
    cluster.vanish_deleted()
    cluster.settle()
    assert cluster.condition(ConditionType.FAILED).reason == "ActiveDeadlineExceeded"


def test_no_clock_runs_before_a_job_begins():
    cluster = FakeCluster(spec(**LIMITED, scheduling={"gang": "Volcano"}))
    late(cluster, seconds=2 * DEADLINE)
    assert cluster.condition(ConditionType.READY).reason == "NotPermitted"
    assert (cluster.plan().requeue_after, cluster.status.stopping) == (None, None)
