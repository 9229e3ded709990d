"""Waiting for room is not failing: which clocks run while pods have no nodes, and what is said meanwhile."""

from datetime import timedelta

from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.observe.observed import Refusal
from grpo_operator.observe.process_state import ProcessState

from .fake_cluster import NOW, FakeCluster, report, spec, termination

NO_GPU = ReasonMessage("Unschedulable", "no node has enough nvidia.com/gpu free: lower trainer.resources")
HOUR = 3600


def later(cluster: FakeCluster, seconds: float) -> None:
    cluster.now = NOW + timedelta(seconds=seconds)
    cluster.settle()


def full(**changes: object) -> FakeCluster:
    """A cluster in which no pod finds a node."""
    cluster = FakeCluster(spec(**changes))
    cluster.has_room = False
    cluster.settle()
    return cluster


def training(**changes: object) -> FakeCluster:
    """A job in the middle of its steps."""
    cluster = FakeCluster(spec(**changes)).start()
    cluster.progress = report(step=9, checkpoint_step=8, policy_version="1.9")
    cluster.settle()
    return cluster


def preempt(cluster: FakeCluster) -> None:
    """The scheduler takes the trainer pod's node for somebody else."""
    cluster.has_room = False
    gone = ReasonMessage("PreemptionByScheduler", "preempted by a pod with a higher priority")
    cluster.change(cluster.pod("trainer-a1-0"), disruption=gone, phase="Failed")
    for name in cluster.names("rollout"):
        cluster.vanish(cluster.pod(name))
    cluster.settle()


def test_a_preempted_job_waits_an_hour_for_a_gpu_and_then_goes_on():
    cluster = training()
    preempt(cluster)
    cluster.unbind(cluster.pod("trainer-a2-0"), why=NO_GPU)
    for minutes in range(0, 24 * 60, 10):
        later(cluster, minutes * 60)
    assert (cluster.status.phase, cluster.status.attempt) == (Phase.STARTING, 2)
    running = cluster.condition(ConditionType.RUNNING)
    assert (running.reason, cluster.pod("trainer-a2-0") in running.message) == ("Unschedulable", True)
    assert NO_GPU.message in running.message
    cluster.has_room = True
    cluster.change(cluster.pod("trainer-a2-0"), start_problem=None)
    cluster.run_all()
    cluster.settle()
    cluster.run_all()
    cluster.progress = report(attempt=2, step=9, policy_version="2.9")
    later(cluster, 25 * HOUR)
    assert (cluster.status.phase, cluster.status.restarts, cluster.status.disruptions) == (
        Phase.RUNNING,
        0,
        1,
    )


def test_a_job_whose_pods_the_quota_refuses_over_night_waits_and_names_the_quota():
    cluster = FakeCluster()
    cluster.status = cluster.plan().status
    (name,) = [child.name for child in cluster.plan().create if "-trainer-" in child.name]
    why = ReasonMessage("QuotaExceeded", f"Pod {name} does not fit into the namespace's quota")
    cluster.refusal = Refusal(name, why)
    for hours in range(12):
        cluster.now = NOW + timedelta(hours=hours)
        cluster.status = cluster.plan().status
    assert cluster.condition(ConditionType.FINISHED).status == "False"
    running = cluster.condition(ConditionType.RUNNING)
    assert (running.reason, running.message) == (why.reason, why.message)
    assert cluster.condition(ConditionType.ROLLOUT_READY).reason == "WaitingForTrainer"
    assert [child.name for child in cluster.plan().create if child.name == name]  # still tried


def test_a_job_whose_old_pod_hangs_on_a_lost_node_waits_and_names_the_pod():
    cluster = training(trainer={"numNodes": 2})
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, reason="OOMKilled"))
    for hours in range(12):
        later(cluster, hours * HOUR)
    running = cluster.condition(ConditionType.RUNNING)
    assert (cluster.status.attempt, running.reason) == (2, "WaitingForEarlierAttempt")
    assert cluster.pod("trainer-a1-1") in running.message
    assert cluster.condition(ConditionType.FINISHED).status == "False"
    cluster.vanish_deleted()
    later(cluster, 12 * HOUR)
    assert [name for name in cluster.names("trainer") if "-a2-" in name] == ["trainer-a2-0", "trainer-a2-1"]


def test_the_startup_clock_starts_when_the_last_pod_of_the_gang_gets_a_node():
    cluster = full(startupDeadlineSeconds=100, trainer={"numNodes": 2})
    later(cluster, 100)
    cluster.has_room = True
    cluster.bind(cluster.pod("trainer-a1-0"))
    later(cluster, 150)
    cluster.bind(cluster.pod("trainer-a1-1"))
    pull = ReasonMessage("ErrImagePull", "pull access denied")
    cluster.change(cluster.pod("trainer-a1-0"), start_problem=pull)
    cluster.settle()
    later(cluster, 249)
    assert cluster.condition(ConditionType.FINISHED).status == "False"
    assert cluster.plan().requeue_after == 1.0
    later(cluster, 250)
    failed = cluster.condition(ConditionType.FAILED)
    assert failed.reason == "StartupDeadlineExceeded" and "pull access denied" in failed.message
    assert cluster.status.waiting_for_room is None


def test_the_startup_clock_stands_still_while_not_one_engine_has_a_node():
    cluster = FakeCluster(spec(startupDeadlineSeconds=100))
    cluster.step()
    cluster.has_room = False
    cluster.settle()
    later(cluster, 200)
    assert cluster.condition(ConditionType.FINISHED).status == "False"
    cluster.bind(cluster.pod("rollout-1-i0"))
    cluster.unbind(cluster.pod("rollout-0-i0"), why=NO_GPU)
    later(cluster, 299)
    assert cluster.condition(ConditionType.FINISHED).status == "False"
    later(cluster, 300)
    assert cluster.condition(ConditionType.FAILED).reason == "StartupDeadlineExceeded"


def test_an_operator_that_restarts_neither_forgets_nor_shortens_a_clock():
    cluster = full(startupDeadlineSeconds=100, schedulingDeadlineSeconds=1000)
    waiting = cluster.status.waiting_for_room
    assert waiting is not None and waiting.since == NOW
    cluster.now = NOW + timedelta(seconds=500)
    cluster.state = ProcessState()
    assert cluster.plan().status == cluster.status
    assert cluster.plan().requeue_after == 500.0


def test_no_rollout_pod_is_made_before_every_trainer_pod_has_a_node():
    cluster = full(trainer={"numNodes": 2})
    assert cluster.names("rollout") == []
    ready = cluster.condition(ConditionType.ROLLOUT_READY)
    assert (ready.status, ready.reason) == ("False", "WaitingForTrainer")
    cluster.bind(cluster.pod("trainer-a1-0"))
    cluster.settle()
    assert cluster.names("rollout") == []
    cluster.bind(cluster.pod("trainer-a1-1"))
    cluster.settle()
    assert cluster.names("rollout") == ["rollout-0-i0", "rollout-1-i0"]


def test_what_the_engines_of_a_job_wait_for_is_said():
    cluster = FakeCluster()
    cluster.step()
    cluster.has_room = False
    cluster.settle()
    cluster.unbind(cluster.pod("rollout-0-i0"), why=NO_GPU)
    cluster.settle()
    ready = cluster.condition(ConditionType.ROLLOUT_READY)
    assert ready.reason == "Unschedulable" and cluster.pod("rollout-0-i0") in ready.message


# schedulingDeadlineSeconds


def test_a_scheduling_deadline_ends_a_job_that_finds_no_node_with_what_it_waited_for():
    cluster = full(schedulingDeadlineSeconds=100)
    cluster.unbind(cluster.pod("trainer-a1-0"), why=NO_GPU)
    later(cluster, 99)
    assert cluster.condition(ConditionType.FINISHED).status == "False"
    assert cluster.plan().requeue_after == 1.0
    later(cluster, 100)
    failed = cluster.condition(ConditionType.FAILED)
    assert (cluster.status.phase, failed.reason) == (Phase.FAILED, "SchedulingDeadlineExceeded")
    assert "schedulingDeadlineSeconds (100)" in failed.message and NO_GPU.message in failed.message
    failure = cluster.status.last_failure
    assert failure is not None
    assert (failure.reason, failure.pod) == ("Unschedulable", cluster.pod("trainer-a1-0"))
    assert cluster.status.waiting_for_room is None


def test_a_scheduling_deadline_counts_the_wait_for_the_pod_of_a_lost_node():
    cluster = training(trainer={"numNodes": 2}, schedulingDeadlineSeconds=100)
    later(cluster, 500)
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, reason="OOMKilled"))
    cluster.settle()
    later(cluster, 599)
    assert cluster.condition(ConditionType.FINISHED).status == "False"
    later(cluster, 600)
    failed = cluster.condition(ConditionType.FAILED)
    assert failed.reason == "SchedulingDeadlineExceeded" and "must end first" in failed.message


def test_a_scheduling_deadline_ends_a_job_whose_engines_find_no_node():
    cluster = FakeCluster(spec(schedulingDeadlineSeconds=100))
    cluster.step()
    cluster.has_room = False
    cluster.settle()
    cluster.unbind(cluster.pod("rollout-0-i0"), why=NO_GPU)
    later(cluster, 99)
    later(cluster, 100)
    failed = cluster.condition(ConditionType.FAILED)
    assert failed.reason == "SchedulingDeadlineExceeded" and cluster.pod("rollout-0-i0") in failed.message


def test_each_attempt_has_the_scheduling_deadline_to_itself():
    cluster = training(schedulingDeadlineSeconds=100)
    later(cluster, 5000)
    preempt(cluster)
    later(cluster, 5099)
    assert (cluster.status.attempt, cluster.condition(ConditionType.FINISHED).status) == (2, "False")
    later(cluster, 5100)
    assert cluster.condition(ConditionType.FAILED).reason == "SchedulingDeadlineExceeded"


def test_an_operator_that_was_away_tries_to_make_the_pods_before_the_scheduling_deadline_ends_the_job():
    cluster = FakeCluster(spec(schedulingDeadlineSeconds=100))
    cluster.status = cluster.plan().status  # it was killed before it made them
    cluster.now += timedelta(seconds=1000)
    cluster.settle()
    assert cluster.names("trainer") == ["trainer-a1-0"]
    assert cluster.condition(ConditionType.FINISHED).status == "False"


def test_a_scheduling_deadline_may_be_set_while_the_job_waits():
    cluster = full()
    cluster.stored_spec = cluster.spec
    cluster.spec, cluster.generation = spec(schedulingDeadlineSeconds=50), 2
    later(cluster, 50)
    assert cluster.condition(ConditionType.FAILED).reason == "SchedulingDeadlineExceeded"


def test_the_pause_after_failures_is_not_waiting_for_room():
    cluster = FakeCluster(spec(schedulingDeadlineSeconds=3)).start()
    for attempt in (1, 2):
        cluster.end(cluster.pod(f"trainer-a{attempt}-0"), termination(1, "boom"))
        cluster.settle()
        cluster.run_all()
    cluster.now += timedelta(seconds=4)
    cluster.settle()
    assert (cluster.status.attempt, cluster.condition(ConditionType.FINISHED).status) == (3, "False")
    assert cluster.status.waiting_for_room is None
