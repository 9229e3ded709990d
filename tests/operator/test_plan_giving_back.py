"""A job that has some of the nodes it needs gives them back, so that of two jobs one can run."""

from datetime import timedelta
from uuid import NAMESPACE_DNS, uuid5

import pytest

from grpo_api.contract.progress import TrainerState
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.observe.observed import Refusal
from grpo_operator.plan.giving_back import HOLD_BACK_SECONDS, HOLD_SECONDS

from .fake_cluster import NOW, FakeCluster, report, spec, termination
from .shared_nodes import SharedNodes

NO_GPU = ReasonMessage("Unschedulable", "no node has enough nvidia.com/gpu free: lower trainer.resources")


def jobs(count: int, *, seed: int, num_nodes: int, replicas: int) -> tuple[FakeCluster, ...]:
    """Jobs that start together, each with a uid of its own."""
    made = []
    for index in range(count):
        uid = str(uuid5(NAMESPACE_DNS, f"{seed}/{index}"))
        job_spec = spec(trainer={"numNodes": num_nodes}, rollout={"replicas": replicas})
        made.append(FakeCluster(job_spec, name=f"job-{index}", uid=uid))
        made[-1].has_room = False
    return tuple(made)


@pytest.mark.parametrize("seed", range(25))
def test_of_two_jobs_that_each_got_half_of_the_nodes_one_runs_and_then_the_other(seed: int):
    both = jobs(2, seed=seed, num_nodes=3, replicas=1)
    SharedNodes(4, both).run(hours=12)
    for job in both:
        assert (job.status.phase, job.status.attempt) == (Phase.SUCCEEDED, 1)
        assert (job.status.restarts, job.status.disruptions) == (0, 0)
    assert sum(job.status.given_back for job in both) >= 1
    ends = [job.status.completion_time for job in both]
    assert ends[0] != ends[1]


@pytest.mark.parametrize("seed", range(15))
def test_of_two_jobs_whose_trainers_leave_no_node_for_engines_one_runs_and_then_the_other(seed: int):
    both = jobs(2, seed=seed, num_nodes=2, replicas=1)
    SharedNodes(4, both).run(hours=12)
    assert [job.status.phase for job in both] == [Phase.SUCCEEDED] * 2
    assert [(job.status.attempt, job.status.disruptions) for job in both] == [(1, 0)] * 2


@pytest.mark.parametrize("seed", range(5))
def test_of_three_jobs_that_share_the_nodes_each_runs_in_the_end(seed: int):
    three = jobs(3, seed=seed, num_nodes=4, replicas=1)
    SharedNodes(6, three).run(hours=48)
    assert [job.status.phase for job in three] == [Phase.SUCCEEDED] * 3


def half_bound(job_spec: GRPOJobSpec | None = None) -> FakeCluster:
    """A gang of which only pod 0 found a node."""
    cluster = FakeCluster(job_spec or spec(trainer={"numNodes": 2}))
    cluster.has_room = False
    cluster.settle()
    cluster.bind(cluster.pod("trainer-a1-0"))
    cluster.unbind(cluster.pod("trainer-a1-1"), why=NO_GPU)
    cluster.settle()
    return cluster


def give_back(cluster: FakeCluster) -> None:
    """Wait until the job gives its nodes back."""
    for _ in range(20):
        if cluster.status.given_back:
            return
        cluster.now += timedelta(seconds=cluster.plan().requeue_after or HOLD_SECONDS)
        cluster.settle()
    raise AssertionError("nothing was given back")


def test_a_gang_that_is_not_complete_gives_its_nodes_back_after_the_stated_time():
    cluster = half_bound()
    cluster.now = NOW + timedelta(seconds=HOLD_SECONDS - 1)
    cluster.settle()
    assert cluster.names("trainer", is_deleting=True) == []
    give_back(cluster)
    assert HOLD_SECONDS <= (cluster.now - NOW).total_seconds() <= 2 * HOLD_SECONDS
    assert cluster.names("trainer", is_deleting=True) == ["trainer-a1-0", "trainer-a1-1"]
    status = cluster.status
    assert (status.attempt, status.restarts, status.disruptions, status.given_back) == (1, 0, 0, 1)
    running = cluster.condition(ConditionType.RUNNING)
    assert (running.reason, NO_GPU.message in running.message) == ("WaitingForRoom", True)
    assert cluster.condition(ConditionType.ROLLOUT_READY).reason == "WaitingForRoom"


def test_the_decision_is_in_status_with_the_phase_before_a_pod_is_deleted():
    cluster = half_bound()
    assert cluster.status.phase is Phase.STARTING
    cluster.now = NOW + timedelta(seconds=2 * HOLD_SECONDS)
    plan = cluster.plan()
    assert (len(plan.delete), plan.create) == (2, ())
    assert (plan.status.phase, plan.status.given_back) == (Phase.PENDING, 1)
    waiting = plan.status.waiting_for_room
    assert waiting is not None and waiting.held_back_until is not None
    held_back = (waiting.held_back_until - cluster.now).total_seconds()
    assert HOLD_BACK_SECONDS <= held_back <= 2 * HOLD_BACK_SECONDS
    assert plan.requeue_after == held_back


def test_an_operator_killed_before_the_deletions_makes_them_when_it_returns():
    cluster = half_bound()
    cluster.now = NOW + timedelta(seconds=2 * HOLD_SECONDS)
    cluster.status = cluster.plan().status
    cluster.history, cluster.now = None, cluster.now + timedelta(hours=1)
    plan = cluster.step()
    assert len(plan.delete) == 2
    assert (cluster.status.attempt, cluster.status.disruptions, cluster.status.given_back) == (1, 0, 1)


def test_pods_that_are_given_back_are_no_failure_however_they_end_and_names_are_waited_for():
    cluster = half_bound()
    give_back(cluster)
    cluster.vanish(cluster.pod("trainer-a1-1"))
    gone = ReasonMessage("PodDeleted", "the pod was deleted from outside")
    cluster.change(cluster.pod("trainer-a1-0"), disruption=gone, termination=termination(143))
    cluster.now += timedelta(hours=1)
    cluster.settle()
    running = cluster.condition(ConditionType.RUNNING)
    assert running.reason == "WaitingForRoom" and cluster.pod("trainer-a1-0") in running.message
    assert (cluster.status.attempt, cluster.names("trainer")) == (1, [])
    cluster.vanish_deleted()
    cluster.settle()
    assert cluster.names("trainer") == ["trainer-a1-0", "trainer-a1-1"]
    assert (cluster.status.attempt, cluster.status.restarts, cluster.status.disruptions) == (1, 0, 0)
    assert cluster.condition(ConditionType.RUNNING).reason == "PodsStarting"


def test_pods_come_again_only_when_the_time_is_over():
    cluster = half_bound()
    give_back(cluster)
    cluster.vanish_deleted()
    cluster.settle()
    assert cluster.names("trainer") == []
    cluster.now += timedelta(seconds=cluster.plan().requeue_after or 0)
    cluster.has_room = True
    cluster.settle()
    assert cluster.names("trainer") == ["trainer-a1-0", "trainer-a1-1"]
    cluster.run_all()
    cluster.settle()
    assert (cluster.status.phase, cluster.status.waiting_for_room) == (Phase.RUNNING, None)


def test_an_operator_with_an_old_status_leaves_the_pods_that_came_again_alone():
    cluster = half_bound()
    give_back(cluster)
    old = cluster.status
    cluster.vanish_deleted()
    cluster.now += timedelta(seconds=2 * HOLD_BACK_SECONDS)
    cluster.has_room = True
    cluster.settle()
    assert cluster.names("trainer") == ["trainer-a1-0", "trainer-a1-1"]
    cluster.status = old
    assert cluster.plan().delete == ()


def test_another_time_is_another_jitter_and_another_job_too():
    def first_and_second(uid: str) -> list[float]:
        cluster = FakeCluster(spec(trainer={"numNodes": 2}), uid=uid)
        cluster.has_room = False
        times = []
        for _ in range(2):
            cluster.settle()
            cluster.bind(cluster.pod("trainer-a1-0"))
            began, count = cluster.now, cluster.status.given_back
            while cluster.status.given_back == count:
                cluster.now += timedelta(seconds=cluster.plan().requeue_after or 1)
                cluster.settle()
            times.append((cluster.now - began).total_seconds())
            cluster.vanish_deleted()
            cluster.now += timedelta(seconds=2 * HOLD_BACK_SECONDS)
        return times

    ours, theirs = first_and_second("a"), first_and_second("b")
    assert len({*ours, *theirs}) == 4


def test_a_gang_of_which_the_quota_refuses_a_part_gives_the_rest_back():
    cluster = half_bound()
    cluster.vanish(cluster.pod("trainer-a1-1"))
    cluster.status = cluster.status.model_copy(update={"phase": Phase.PENDING})
    why = ReasonMessage("QuotaExceeded", "does not fit into the namespace's quota")
    cluster.refusal = Refusal(cluster.pod("trainer-a1-1"), why)
    cluster.now = NOW + timedelta(seconds=2 * HOLD_SECONDS)
    plan = cluster.plan()
    assert (plan.status.given_back, plan.create) == (1, ())
    assert [deletion.name for deletion in plan.delete] == [cluster.pod("trainer-a1-0")]


def test_a_missing_pod_is_tried_before_anything_is_given_back():
    cluster = half_bound()
    cluster.vanish(cluster.pod("trainer-a1-1"))
    cluster.status = cluster.status.model_copy(update={"phase": Phase.PENDING})
    cluster.now = NOW + timedelta(seconds=2 * HOLD_SECONDS)
    plan = cluster.plan()
    assert (plan.status.given_back, plan.delete) == (0, ())
    assert plan.create[-1].name == cluster.pod("trainer-a1-1")


def test_a_single_trainer_pod_without_a_node_just_waits():
    cluster = FakeCluster()
    cluster.has_room = False
    cluster.settle()
    cluster.unbind(cluster.pod("trainer-a1-0"), why=NO_GPU)
    cluster.now += timedelta(days=1)
    cluster.settle()
    assert cluster.names("trainer") == ["trainer-a1-0"]
    assert (cluster.status.given_back, cluster.names("rollout")) == (0, [])


def without_engines() -> FakeCluster:
    """A job whose trainer pod runs, and whose engines find no node."""
    cluster = FakeCluster()
    cluster.step()
    cluster.has_room = False
    cluster.settle()
    for name in ("rollout-0-i0", "rollout-1-i0"):
        cluster.unbind(cluster.pod(name), why=NO_GPU)
    cluster.change(cluster.pod("trainer-a1-0"), phase="Running", is_ready=True)
    cluster.progress = report(state=TrainerState.WAITING_FOR_ROLLOUT, step=0, policy_version="1.0")
    cluster.settle()
    assert cluster.status.phase is Phase.RUNNING
    return cluster


def test_a_trainer_without_a_single_engine_gives_its_nodes_back_and_comes_again():
    cluster = without_engines()
    give_back(cluster)
    assert cluster.names("trainer") == cluster.names("rollout") == []
    assert (cluster.status.phase, cluster.status.attempt) == (Phase.PENDING, 1)
    message = cluster.condition(ConditionType.RUNNING).message
    assert cluster.pod("rollout-0-i0") in message and NO_GPU.message in message
    cluster.vanish_deleted()
    cluster.progress = None
    cluster.has_room = True
    cluster.now += timedelta(seconds=2 * HOLD_BACK_SECONDS)
    events = [event for _ in range(4) for event in cluster.step().events]
    assert [event.why.reason for event in events] == []  # pods that come again replace nothing
    cluster.run_all()
    cluster.settle()
    assert cluster.names("rollout") == ["rollout-0-i1", "rollout-1-i1"]
    assert (cluster.status.phase, cluster.status.restarts, cluster.status.disruptions) == (
        Phase.RUNNING,
        0,
        0,
    )


def test_giving_back_is_an_event_each_time():
    cluster = half_bound()
    cluster.now = NOW + timedelta(seconds=2 * HOLD_SECONDS)
    (event,) = cluster.step().events
    assert (event.why.reason, event.key, event.is_warning) == ("WaitingForRoom", "1", True)
    assert NO_GPU.message in event.why.message


def test_a_trainer_that_has_one_engine_keeps_everything():
    cluster = without_engines()
    cluster.bind(cluster.pod("rollout-1-i0"))
    cluster.now += timedelta(days=1)
    cluster.step()
    assert (cluster.status.given_back, cluster.plan().delete) == (0, ())


@pytest.mark.parametrize("engines", [("rollout-0-i0",), ("rollout-0-i0", "rollout-1-i0")])
def test_a_job_that_makes_steps_never_gives_anything_back(engines: tuple[str, ...]):
    cluster = FakeCluster().start()
    cluster.progress = report(step=4)
    cluster.settle()
    cluster.has_room = False
    cluster.vanish(*map(cluster.pod, engines))
    for hours in range(10):
        cluster.now = NOW + timedelta(hours=hours)
        cluster.settle()
        assert (cluster.status.given_back, cluster.names("trainer")) == (0, ["trainer-a1-0"])


def test_a_trainer_that_does_not_answer_may_be_training_and_keeps_its_nodes():
    cluster = without_engines()
    cluster.report_problem = ReasonMessage("ProgressUnreachable", "the trainer has not answered")
    cluster.now += timedelta(days=1)
    cluster.settle()
    assert cluster.status.given_back == 0
    cluster.progress, cluster.report_problem = None, None  # the operator has restarted
    cluster.settle()
    assert cluster.status.given_back == 0


def test_engines_of_the_attempt_before_are_given_back_when_the_next_gang_finds_no_node():
    cluster = FakeCluster().start()
    cluster.has_room = False
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, reason="OOMKilled"))
    cluster.settle()
    cluster.unbind(cluster.pod("trainer-a2-0"), why=NO_GPU)
    cluster.settle()
    assert cluster.names("rollout") == ["rollout-0-i0", "rollout-1-i0"]
    give_back(cluster)
    assert (cluster.now - NOW).total_seconds() >= HOLD_SECONDS
    assert cluster.names("rollout", is_deleting=True) == ["rollout-0-i0", "rollout-1-i0"]
    assert (cluster.status.attempt, cluster.status.restarts, cluster.status.disruptions) == (2, 1, 0)


def test_a_gang_that_failed_is_not_given_back_but_ended():
    cluster = half_bound()
    cluster.now = NOW + timedelta(seconds=2 * HOLD_SECONDS)
    cluster.end(cluster.pod("trainer-a1-0"), termination(40, "the spec is wrong"))
    cluster.settle()
    assert (cluster.status.phase, cluster.status.given_back) == (Phase.FAILED, 0)


def test_a_job_that_completes_or_fails_waits_for_nothing_any_more():
    cluster = half_bound(spec(trainer={"numNodes": 2}, schedulingDeadlineSeconds=5000))
    give_back(cluster)
    cluster.now = NOW + timedelta(seconds=5000)
    cluster.settle()
    failed = cluster.condition(ConditionType.FAILED)
    assert failed.reason == "SchedulingDeadlineExceeded" and NO_GPU.message in failed.message
    assert cluster.status.waiting_for_room is None
