"""The Events that people get, each once."""

from datetime import timedelta

from grpo_api.contract.reasons import ReasonMessage
from grpo_operator.apply.event_object import event_of
from grpo_operator.plan.draft import EventDraft

from .fake_world import FakeWorld, spec, termination


def events_until_settled(world: FakeWorld) -> list[EventDraft]:
    """Every Event until the world comes to rest."""
    events: list[EventDraft] = []
    for _ in range(10):
        before = (world.status, dict(world.pods))
        events += world.step().events
        if (world.status, world.pods) == before:
            break
    return events


def test_the_mode_is_an_event_with_its_reason_and_so_is_the_start_when_all_pods_run():
    world = FakeWorld()
    (chosen,) = events_until_settled(world)
    assert (chosen.why.reason, chosen.is_warning) == ("ModeChosen", False)
    assert chosen.why.message == "Disaggregated, because spec.mode is Auto and spec.rollout is set"
    world.run_all()
    (started,) = events_until_settled(world)
    assert (started.why.reason, started.why.message) == ("Started", "attempt 1: every trainer pod runs")


def test_a_second_plan_has_no_events():
    world = FakeWorld().start()
    assert world.plan().events == ()


def test_a_new_attempt_is_an_event_with_its_cause():
    world = FakeWorld().start()
    world.end(world.pod("trainer-a1-0"), termination(1, "boom"))
    (restarting,) = events_until_settled(world)
    assert (restarting.why.reason, restarting.is_warning) == ("Restarting", True)
    assert (
        restarting.why.message.startswith("attempt 2 follows because: ") and "boom" in restarting.why.message
    )
    world.run_all()
    (started,) = events_until_settled(world)
    assert (started.why.reason, started.key) == ("Started", "2")


def test_a_replaced_engine_is_an_event_with_what_happened_to_the_old_one():
    world = FakeWorld().start()
    lost = world.pod("rollout-1-i0")
    world.change(
        lost, is_deleting=True, disruption=ReasonMessage("TaintManagerEviction", "the node is drained")
    )
    (replaced,) = events_until_settled(world)
    assert replaced.why.reason == "EngineReplaced"
    assert replaced.why.message == (
        f"rollout pod {lost} is replaced by {world.pod('rollout-1-i1')}: the node is drained"
    )


def test_an_engine_that_ended_at_once_is_an_event_when_it_is_replaced():
    world = FakeWorld().start()
    world.change(
        world.pod("rollout-1-i0"),
        phase="Failed",
        is_ready=False,
        start_problem=ReasonMessage("OutOfcpu", "no cpu left"),
        created_at=world.now,
    )
    assert events_until_settled(world) == []
    world.now += timedelta(seconds=10)
    (replaced,) = events_until_settled(world)
    assert "no cpu left" in replaced.why.message


def refuse(world: FakeWorld, name: str, reason: str) -> None:
    """A node takes the pod and refuses it at once."""
    problem = ReasonMessage(reason, "the node has no room")
    world.change(name, phase="Failed", is_ready=False, start_problem=problem, created_at=world.now)


def test_a_node_that_refuses_every_engine_gets_them_ever_more_slowly_and_is_one_event():
    world = FakeWorld().start()
    events, waits = [], []
    for incarnation in range(6):
        refuse(world, world.pod(f"rollout-1-i{incarnation}"), "OutOfcpu")
        plan = world.settle()
        assert plan.requeue_after is not None
        waits.append(plan.requeue_after)
        world.now += timedelta(seconds=plan.requeue_after)
        events += events_until_settled(world)
    assert waits == [10.0, 20.0, 40.0, 80.0, 160.0, 160.0]
    assert len({each.key for each in events if each.why.reason == "EngineReplaced"}) == 1
    refuse(world, world.pod("rollout-1-i6"), "OutOfmemory")
    world.now += timedelta(seconds=160)
    events += events_until_settled(world)
    assert len({each.key for each in events if each.why.reason == "EngineReplaced"}) == 2


def test_an_engine_that_ran_is_replaced_without_a_longer_wait_and_is_an_event_each_time():
    world = FakeWorld().start()
    events = []
    for incarnation in range(4):
        world.run_all()
        lost = world.pod(f"rollout-1-i{incarnation}")
        world.change(lost, created_at=world.now)
        world.now += timedelta(seconds=10)
        world.end(lost, termination(137))
        events += events_until_settled(world)
    assert world.names("rollout") == ["rollout-0-i0", "rollout-1-i4"]
    assert len({each.key for each in events if each.why.reason == "EngineReplaced"}) == 4


def test_more_replicas_are_no_replacement():
    world = FakeWorld().start()
    world.spec, world.generation = spec(rollout={"replicas": 4}), 2
    assert events_until_settled(world) == []


def test_a_replica_that_comes_back_after_it_was_taken_away_is_no_replacement():
    world = FakeWorld().start()
    for replicas in (1, 2):
        world.spec, world.generation = spec(rollout={"replicas": replicas}), world.generation + 1
        assert events_until_settled(world) == []
        world.vanish_deleted()
    assert world.names("rollout") == ["rollout-0-i0", "rollout-1-i1"]


def test_either_end_is_one_event():
    for code, reason, is_warning in ((0, "Completed", False), (40, "Failed", True)):
        world = FakeWorld().start()
        world.end(world.pod("trainer-a1-0"), termination(code, "the dataset has no column question"))
        (end,) = events_until_settled(world)
        assert (end.why.reason, end.is_warning) == (reason, is_warning)
        assert is_warning == ("no column question" in end.why.message)


def test_an_event_has_a_name_of_its_own_and_the_same_one_for_the_same_reason_and_key():
    world = FakeWorld()
    job = world.observed().job
    first, again, other = (
        event_of(job, EventDraft(ReasonMessage("Started", message), key=key), now=world.now)
        for message, key in (("attempt 1 runs", "1"), ("in other words", "1"), ("attempt 2 runs", "2"))
    )
    assert first["metadata"]["name"] == again["metadata"]["name"] != other["metadata"]["name"]
    assert first["involvedObject"]["uid"] == job.uid
    assert (
        len(event_of(job, EventDraft(ReasonMessage("Failed", "x" * 5000), key=""), now=world.now)["message"])
        == 1024
    )
