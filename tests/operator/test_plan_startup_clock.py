"""From when startupDeadlineSeconds runs while engines come and go before the first step."""

from datetime import timedelta

from grpo_api.contract.progress import TrainerState
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.observe.observed import Liveness
from grpo_operator.settings import HOLD_BACK_SECONDS, HOLD_SECONDS

from .fake_cluster import NOW, FakeCluster, report, spec, termination

NO_GPU = ReasonMessage("Unschedulable", "no node is free")


def starting(*, deadline: int = 100, **changes: object) -> FakeCluster:
    """A trainer that waits for its only engine, which loads its model."""
    cluster = FakeCluster(spec(startupDeadlineSeconds=deadline, rollout={"replicas": 1}, **changes)).start()
    wait_for_engines(cluster)
    return cluster


def wait_for_engines(cluster: FakeCluster) -> None:
    for name in cluster.names("rollout"):
        cluster.change(cluster.pod(name), is_ready=False)
    attempt = cluster.status.attempt
    cluster.progress = report(
        attempt=attempt, state=TrainerState.WAITING_FOR_ROLLOUT, step=0, policy_version=f"{attempt}.0"
    )
    cluster.settle()


def later(cluster: FakeCluster, seconds: float) -> None:
    cluster.now = NOW + timedelta(seconds=seconds)
    cluster.settle()


def evict(cluster: FakeCluster) -> None:
    """All engines go; the next ones get nodes where there is room."""
    cluster.vanish(*(cluster.pod(name) for name in cluster.names("rollout")))
    cluster.settle()


def assert_alive(cluster: FakeCluster) -> None:
    assert (cluster.condition(ConditionType.FINISHED).status, cluster.status.attempt) == ("False", 1)


def assert_missed(cluster: FakeCluster) -> None:
    assert cluster.status.phase is Phase.FAILED
    assert cluster.condition(ConditionType.FAILED).reason == "StartupDeadlineExceeded"


def test_an_engine_that_is_evicted_again_and_again_does_not_begin_the_clock_again():
    cluster = starting(deadline=200)
    for seconds in (60, 120, 180):
        later(cluster, seconds)
        evict(cluster)
        assert_alive(cluster)
    assert cluster.plan().requeue_after == 20.0
    later(cluster, 200)
    assert_missed(cluster)


def test_the_wait_for_another_node_does_not_count():
    cluster = starting()
    later(cluster, 50)
    cluster.has_room = False
    evict(cluster)
    (engine,) = (cluster.pod(name) for name in cluster.names("rollout"))
    for seconds in (60, 150, 240):
        cluster.unbind(engine, why=NO_GPU)
        later(cluster, seconds)
        assert_alive(cluster)
    later(cluster, 250)
    cluster.bind(engine)
    cluster.change(engine, start_problem=None)
    cluster.settle()
    later(cluster, 299)
    assert_alive(cluster)
    later(cluster, 300)
    assert_missed(cluster)


def test_a_job_that_gave_its_nodes_back_has_the_whole_time_again():
    cluster = starting(deadline=3600)
    cluster.has_room = False
    later(cluster, 3000)
    evict(cluster)
    later(cluster, 3000 + 2 * HOLD_SECONDS)
    assert (cluster.status.given_back, cluster.status.starting_since) == (1, None)
    cluster.vanish_deleted()
    cluster.progress, cluster.has_room = None, True
    later(cluster, 3000 + 2 * HOLD_SECONDS + 2 * HOLD_BACK_SECONDS)
    cluster.run_all()
    assert cluster.status.starting_since == cluster.now


def test_the_next_attempt_has_the_whole_time_again():
    cluster = starting()
    later(cluster, 60)
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.settle()
    cluster.run_all()
    wait_for_engines(cluster)
    assert (cluster.status.attempt, cluster.status.starting_since) == (2, cluster.now)
    later(cluster, 159)
    assert cluster.condition(ConditionType.FINISHED).status == "False"
    later(cluster, 160)
    assert_missed(cluster)


def test_under_a_crd_that_drops_the_field_the_clock_runs_from_the_oldest_engine_that_is_left():
    cluster = starting()
    for seconds in (90, 180):
        later(cluster, seconds)
        evict(cluster)
        cluster.status = cluster.status.model_copy(update={"starting_since": None})
        assert_alive(cluster)
    later(cluster, 279)
    assert_alive(cluster)
    cluster.status = cluster.status.model_copy(update={"starting_since": None})
    later(cluster, 280)
    assert_missed(cluster)


def reads(cluster: FakeCluster, *, at: float, moved_at: float) -> None:
    """The trainer reads its checkpoint, of which bytes last came at `moved_at`."""
    cluster.progress = report(
        state=TrainerState.STARTING,
        step=0,
        policy_version="",
        heartbeat=int(moved_at),
        message="checking the checkpoint of step 50: 10% of 870.0 GB",
    )
    changed_at, answered_at = (NOW + timedelta(seconds=seconds) for seconds in (moved_at, at))
    cluster.liveness = Liveness(changed_at=changed_at, answered_at=answered_at)
    later(cluster, at)


def test_what_was_read_before_there_was_room_does_not_make_the_clock_begin_earlier():
    cluster = FakeCluster(spec(startupDeadlineSeconds=100, rollout={"replicas": 1}))
    cluster.has_room = False
    cluster.settle()
    cluster.bind(cluster.pod("trainer-a1-0"))
    cluster.change(cluster.pod("trainer-a1-0"), phase="Running", is_ready=True)
    cluster.settle()
    later(cluster, 50)
    cluster.bind(cluster.pod("rollout-0-i0"))
    for seconds in (51, 149):
        reads(cluster, at=seconds, moved_at=10)
        assert_alive(cluster)
    later(cluster, 150)
    assert_missed(cluster)


def test_the_time_in_which_a_checkpoint_is_read_does_not_count():
    cluster = starting()
    for seconds in (50, 101, 160, 250):
        reads(cluster, at=seconds + 2, moved_at=seconds)
        assert_alive(cluster)
    ready = cluster.condition(ConditionType.READY)
    assert "checkpoint of step 50" in ready.message
    wait_for_engines(cluster)
    later(cluster, 349)
    assert_alive(cluster)
    later(cluster, 350)
    assert_missed(cluster)


def test_a_checkpoint_that_no_byte_comes_of_is_waited_for_until_the_deadline():
    cluster = FakeCluster(spec(startupDeadlineSeconds=100, rollout={"replicas": 1})).start()
    reads(cluster, at=90, moved_at=30)
    assert_alive(cluster)
    assert cluster.plan().requeue_after == 40.0
    reads(cluster, at=129, moved_at=30)
    assert_alive(cluster)
    reads(cluster, at=130, moved_at=30)
    assert_missed(cluster)
    assert "checkpoint of step 50" in cluster.condition(ConditionType.FAILED).message


def test_while_a_checkpoint_is_read_the_status_learns_of_it_once_a_minute():
    cluster = starting(deadline=1000)
    reads(cluster, at=10, moved_at=10.75)
    assert cluster.status.starting_since == NOW + timedelta(seconds=10), "whole seconds"
    assert cluster.plan().requeue_after == 60.0
