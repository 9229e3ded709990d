"""A job that has some of the nodes it needs gives them back, and comes again."""

from datetime import timedelta

from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.observe.observed import Refusal
from grpo_operator.observe.process_state import ProcessState
from grpo_operator.settings import HOLD_BACK_SECONDS, HOLD_SECONDS, GiveBackTimes

from .fake_cluster import NOW, FakeCluster, report, spec, termination
from .partly_bound import NO_GPU, give_back, half_bound, without_engines


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


def test_a_node_that_comes_after_hours_of_waiting_is_held_from_then_on():
    cluster = half_bound(has_node=False)
    cluster.now = NOW + timedelta(hours=3)
    cluster.settle()
    cluster.bind(cluster.pod("trainer-a1-0"))
    cluster.settle()
    assert cluster.names("trainer", is_deleting=True) == []
    give_back(cluster)
    assert (cluster.now - NOW - timedelta(hours=3)).total_seconds() >= HOLD_SECONDS


def test_an_operator_that_was_given_other_times_keeps_those():
    cluster = half_bound()
    cluster.give_back_times = GiveBackTimes(hold_seconds=20, hold_back_seconds=0.5)
    give_back(cluster)
    assert 20 <= (cluster.now - NOW).total_seconds() <= 40
    waiting = cluster.status.waiting_for_room
    assert waiting is not None and waiting.held_back_until is not None
    assert waiting.held_back_until - cluster.now <= timedelta(seconds=1)


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
    cluster.state, cluster.now = ProcessState(), cluster.now + timedelta(hours=1)
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


def test_a_job_that_completes_or_fails_waits_for_nothing_any_more():
    cluster = half_bound(spec(trainer={"numNodes": 2}, schedulingDeadlineSeconds=5000))
    give_back(cluster)
    cluster.now = NOW + timedelta(seconds=5000)
    cluster.settle()
    failed = cluster.condition(ConditionType.FAILED)
    assert failed.reason == "SchedulingDeadlineExceeded" and NO_GPU.message in failed.message
    assert cluster.status.waiting_for_room is None


def test_a_pod_that_was_given_back_reports_nothing_for_a_job_whose_snapshot_is_lost():
    cluster = half_bound()
    give_back(cluster)
    cluster.stored_problem = "ConfigMap copy-config: cut off"
    cluster.spec = spec(algorithm={"steps": 11})
    cluster.stored_spec = None
    cluster.progress = report(step=4, policy_version="1.4")
    cluster.step()
    assert cluster.condition(ConditionType.READY).reason == "SchemaSkew"
    assert (cluster.status.step, cluster.status.policy_version) == (0, "")
