"""Waiting for room beside everything else that can happen to an attempt meanwhile."""

from datetime import timedelta

from grpo_api.contract.progress import EngineCounts, TrainerState
from grpo_api.contract.reasons import ReasonMessage

from .fake_cluster import FakeCluster, report, spec, termination, termination_message


def waiting_report(attempt: int = 1):
    return report(
        attempt=attempt,
        state=TrainerState.WAITING_FOR_ROLLOUT,
        step=0,
        policy_version=f"{attempt}.0",
        engines=EngineCounts(desired=2),
    )


def without_engines(**sections: object) -> FakeCluster:
    """A trainer that runs and answers, and rollout pods that no node takes."""
    cluster = FakeCluster(spec(**sections))
    cluster.has_room = False
    cluster.settle()
    cluster.bind(cluster.pod("trainer-a1-0"))
    cluster.change(cluster.pod("trainer-a1-0"), phase="Running", is_ready=True)
    cluster.settle()
    cluster.progress = waiting_report()
    cluster.settle()
    assert cluster.status.waiting_for_room is not None
    return cluster


def test_a_poll_without_an_answer_does_not_begin_the_wait_again():
    cluster = without_engines(schedulingDeadlineSeconds=3600)
    since = cluster.status.waiting_for_room
    cluster.now += timedelta(seconds=200)
    cluster.silent_since = cluster.now
    cluster.settle()
    assert cluster.status.waiting_for_room == since
    cluster.silent_since = None
    cluster.settle()
    assert cluster.status.waiting_for_room == since


def test_an_operator_that_has_heard_nothing_yet_leaves_the_wait_as_it_is():
    cluster = without_engines(schedulingDeadlineSeconds=3600)
    since = cluster.status.waiting_for_room
    cluster.now += timedelta(seconds=200)
    cluster.progress = None
    cluster.settle()
    assert cluster.status.waiting_for_room == since


def test_a_trainer_that_gives_up_waiting_for_engines_without_nodes_uses_up_no_restart():
    cluster = without_engines(rollout={"replicas": 1, "lostTimeoutSeconds": 240})
    for _ in range(6):
        attempt = cluster.status.attempt
        name = cluster.pod(f"trainer-a{attempt}-0")
        if name in cluster.pods and cluster.pods[name].is_alive:
            cluster.bind(name)
            cluster.change(name, phase="Running", is_ready=True)
            cluster.progress = waiting_report(attempt)
            cluster.settle()
            cluster.now += timedelta(seconds=240)
            cluster.end(name, termination(43, "no engine"))
        cluster.settle()
        cluster.progress = None
        cluster.now += timedelta(seconds=30)
        cluster.settle()
    assert cluster.status.attempt > 2
    assert cluster.status.restarts == 0


def test_a_trainer_that_fails_by_itself_while_engines_wait_for_nodes_is_counted():
    cluster = without_engines()
    cluster.end(cluster.pod("trainer-a1-0"), termination(137, reason="OOMKilled"))
    cluster.settle()
    assert (cluster.status.attempt, cluster.status.restarts) == (2, 1)


def test_an_engine_error_does_not_end_a_job_that_trained_while_the_operator_was_away():
    cluster = FakeCluster(spec())
    cluster.settle()
    cluster.run_all()
    assert cluster.status.phase == "Starting"
    cluster.now += timedelta(seconds=60)
    last = report(step=9, policy_version="1.9")
    message = termination_message(1, "UnexpectedError", "x", progress=last)
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, message))
    broken = termination(40, "bad")
    cluster.change(cluster.pod("rollout-0-i0"), is_ready=False, restarts=1, last_termination=broken)
    cluster.settle()
    assert (cluster.status.phase, cluster.status.attempt) == ("Starting", 2)


def given_back_after_a_report() -> FakeCluster:
    """Both trainer pods had nodes, no engine had one, and the nodes were given back."""
    cluster = FakeCluster(spec(trainer={"numNodes": 2}))
    cluster.has_room = False
    cluster.settle()
    run_gang(cluster, "a", "a")
    cluster.settle()
    cluster.progress = waiting_report()
    cluster.settle()
    for _ in range(30):
        cluster.now += timedelta(seconds=30)
        cluster.settle()
        if cluster.status.given_back:
            break
    assert cluster.status.given_back == 1
    cluster.progress = None
    return cluster


def run_gang(cluster: FakeCluster, *builds: str) -> None:
    for index, build in enumerate(builds):
        name = cluster.pod(f"trainer-a1-{index}")
        cluster.bind(name)
        cluster.change(name, phase="Running", is_ready=True, image_id="sha256:" + build * 64)


def test_builds_are_compared_again_when_pods_come_again_in_the_same_attempt():
    cluster = given_back_after_a_report()
    cluster.vanish_deleted()
    cluster.now += timedelta(seconds=300)
    cluster.settle()
    run_gang(cluster, "a", "b")
    cluster.settle()
    assert cluster.status.attempt == 2
    assert cluster.status.last_failure is not None
    assert cluster.status.last_failure.reason == "ImageChanged"


def test_a_given_back_pod_whose_end_is_seen_late_is_no_failure():
    cluster = given_back_after_a_report()
    before = dict(cluster.pods)
    cluster.vanish_deleted()
    cluster.now += timedelta(seconds=300)
    cluster.step()
    assert cluster.status.waiting_for_room and not cluster.status.waiting_for_room.held_back_until
    cluster.pods = before  # of another operator, whose watch of pods is slower than that of jobs
    gone = ReasonMessage("PodDeleted", "the pod was deleted from outside")
    for name in cluster.names("trainer"):
        cluster.change(name, is_deleting=True, disruption=gone)
    plan = cluster.plan()
    assert (plan.status.attempt, plan.status.disruptions) == (1, 0)
