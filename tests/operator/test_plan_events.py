"""The Events that people get, each once."""

from datetime import timedelta

from grpo_api.contract.reasons import ReasonMessage
from grpo_operator.apply.events import event_of
from grpo_operator.plan.draft import EventDraft

from .fake_cluster import FakeCluster, spec, termination


def events_until_settled(cluster: FakeCluster) -> list[EventDraft]:
    """Every Event until the cluster comes to rest."""
    events: list[EventDraft] = []
    for _ in range(10):
        before = (cluster.status, dict(cluster.pods))
        events += cluster.step().events
        if (cluster.status, cluster.pods) == before:
            break
    return events


def test_the_mode_is_an_event_with_its_reason_and_so_is_the_start_when_all_pods_run():
    cluster = FakeCluster()
    (chosen,) = events_until_settled(cluster)
    assert (chosen.why.reason, chosen.is_warning) == ("ModeChosen", False)
    assert chosen.why.message == "Disaggregated, because spec.mode is Auto and spec.rollout is set"
    cluster.run_all()
    (started,) = events_until_settled(cluster)
    assert (started.why.reason, started.why.message) == ("Started", "attempt 1: every trainer pod runs")


def test_a_second_plan_has_no_events():
    cluster = FakeCluster().start()
    assert cluster.plan().events == ()


def test_a_new_attempt_is_an_event_with_its_cause():
    cluster = FakeCluster().start()
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    (restarting,) = events_until_settled(cluster)
    assert (restarting.why.reason, restarting.is_warning) == ("Restarting", True)
    assert (
        restarting.why.message.startswith("attempt 2 follows because: ") and "boom" in restarting.why.message
    )
    cluster.run_all()
    (started,) = events_until_settled(cluster)
    assert (started.why.reason, started.key) == ("Started", "2")


def test_a_replaced_engine_is_an_event_with_what_happened_to_the_old_one():
    cluster = FakeCluster().start()
    lost = cluster.pod("rollout-1-i0")
    cluster.change(
        lost, is_deleting=True, disruption=ReasonMessage("TaintManagerEviction", "the node is drained")
    )
    (replaced,) = events_until_settled(cluster)
    assert replaced.why.reason == "EngineReplaced"
    assert replaced.why.message == (
        f"rollout pod {lost} is replaced by {cluster.pod('rollout-1-i1')}: the node is drained"
    )


def test_an_engine_that_ended_at_once_is_an_event_when_it_is_replaced():
    cluster = FakeCluster().start()
    cluster.change(
        cluster.pod("rollout-1-i0"),
        phase="Failed",
        is_ready=False,
        start_problem=ReasonMessage("OutOfcpu", "no cpu left"),
        created_at=cluster.now,
    )
    assert events_until_settled(cluster) == []
    cluster.now += timedelta(seconds=10)
    (replaced,) = events_until_settled(cluster)
    assert "no cpu left" in replaced.why.message


def refuse(cluster: FakeCluster, name: str, reason: str) -> None:
    """A node takes the pod and refuses it at once."""
    problem = ReasonMessage(reason, "the node has no room")
    cluster.change(name, phase="Failed", is_ready=False, start_problem=problem, created_at=cluster.now)


def test_a_node_that_refuses_every_engine_gets_them_ever_more_slowly_and_is_one_event():
    cluster = FakeCluster().start()
    events, waits = [], []
    for incarnation in range(6):
        refuse(cluster, cluster.pod(f"rollout-1-i{incarnation}"), "OutOfcpu")
        plan = cluster.settle()
        assert plan.requeue_after is not None
        waits.append(plan.requeue_after)
        cluster.now += timedelta(seconds=plan.requeue_after)
        events += events_until_settled(cluster)
    assert waits == [10.0, 20.0, 40.0, 80.0, 160.0, 160.0]
    assert len({each.key for each in events if each.why.reason == "EngineReplaced"}) == 1
    refuse(cluster, cluster.pod("rollout-1-i6"), "OutOfmemory")
    cluster.now += timedelta(seconds=160)
    events += events_until_settled(cluster)
    assert len({each.key for each in events if each.why.reason == "EngineReplaced"}) == 2


def test_an_engine_that_ran_is_replaced_without_a_longer_wait_and_is_an_event_each_time():
    cluster = FakeCluster().start()
    events = []
    for incarnation in range(4):
        cluster.run_all()
        lost = cluster.pod(f"rollout-1-i{incarnation}")
        cluster.change(lost, created_at=cluster.now)
        cluster.now += timedelta(seconds=10)
        cluster.end(lost, termination(137))
        events += events_until_settled(cluster)
    assert cluster.names("rollout") == ["rollout-0-i0", "rollout-1-i4"]
    assert len({each.key for each in events if each.why.reason == "EngineReplaced"}) == 4


def test_more_replicas_are_no_replacement():
    cluster = FakeCluster().start()
    cluster.spec, cluster.generation = spec(rollout={"replicas": 4}), 2
    assert events_until_settled(cluster) == []


def test_a_replica_that_comes_back_after_it_was_taken_away_is_no_replacement():
    cluster = FakeCluster().start()
    for replicas in (1, 2):
        cluster.spec, cluster.generation = spec(rollout={"replicas": replicas}), cluster.generation + 1
        assert events_until_settled(cluster) == []
        cluster.vanish_deleted()
    assert cluster.names("rollout") == ["rollout-0-i0", "rollout-1-i1"]


def test_either_end_is_one_event():
    for code, reason, is_warning in ((0, "Completed", False), (40, "Failed", True)):
        cluster = FakeCluster().start()
        cluster.end(cluster.pod("trainer-a1-0"), termination(code, "the dataset has no column question"))
        (end,) = events_until_settled(cluster)
        assert (end.why.reason, end.is_warning) == (reason, is_warning)
        assert is_warning == ("no column question" in end.why.message)


def test_an_event_has_a_name_of_its_own_and_the_same_one_for_the_same_reason_and_key():
    cluster = FakeCluster()
    job = cluster.observed().job
    first, again, other = (
        event_of(job, EventDraft(ReasonMessage("Started", message), key=key), now=cluster.now)
        for message, key in (("attempt 1 runs", "1"), ("in other words", "1"), ("attempt 2 runs", "2"))
    )
    assert first["metadata"]["name"] == again["metadata"]["name"] != other["metadata"]["name"]
    assert first["involvedObject"]["uid"] == job.uid
    assert (
        len(
            event_of(job, EventDraft(ReasonMessage("Failed", "x" * 5000), key=""), now=cluster.now)["message"]
        )
        == 1024
    )
