"""What people are told by Events, and that they are told once."""

from datetime import timedelta

from grpo_operator.event import event_of
from grpo_operator.observed import Trouble
from grpo_operator.plan.draft import Announcement

from .fake_world import FakeWorld, ending, spec


def told(world: FakeWorld) -> list[Announcement]:
    """Everything announced until the world comes to rest."""
    said: list[Announcement] = []
    for _ in range(10):
        before = (world.status, dict(world.pods))
        said += world.step().announcements
        if (world.status, world.pods) == before:
            break
    return said


def reasons(said: list[Announcement]) -> list[str]:
    return [each.reason for each in said]


def test_the_mode_is_announced_with_its_reason_and_the_start_when_all_pods_run():
    world = FakeWorld()
    (chosen,) = told(world)
    assert (chosen.reason, chosen.is_warning) == ("ModeChosen", False)
    assert chosen.message == "Disaggregated, because spec.mode is Auto and spec.rollout is set"
    world.run_all()
    (started,) = told(world)
    assert (started.reason, started.message) == ("Started", "attempt 1: every trainer pod runs")


def test_a_second_look_announces_nothing():
    world = FakeWorld().start()
    assert world.plan().announcements == ()


def test_a_new_attempt_is_announced_with_its_cause():
    world = FakeWorld().start()
    world.end(world.pod("trainer-a1-0"), ending(1, "boom"))
    (restarting,) = told(world)
    assert (restarting.reason, restarting.is_warning) == ("Restarting", True)
    assert restarting.message.startswith("attempt 2 follows because: ") and "boom" in restarting.message
    world.run_all()
    (started,) = told(world)
    assert (started.reason, started.key) == ("Started", "2")


def test_a_replaced_engine_is_announced_with_what_became_of_the_old_one():
    world = FakeWorld().start()
    lost = world.pod("rollout-1-i0")
    world.change(lost, is_deleting=True, disruption=Trouble("TaintManagerEviction", "the node is drained"))
    (replaced,) = told(world)
    assert replaced.reason == "EngineReplaced"
    assert replaced.message == (
        f"rollout pod {lost} is replaced by {world.pod('rollout-1-i1')}: the node is drained"
    )


def test_an_engine_that_ended_at_once_is_announced_when_it_is_replaced():
    world = FakeWorld().start()
    world.change(
        world.pod("rollout-1-i0"),
        phase="Failed",
        is_ready=False,
        trouble=Trouble("OutOfcpu", "no cpu left"),
        created_at=world.now,
    )
    assert told(world) == []
    world.now += timedelta(seconds=10)
    (replaced,) = told(world)
    assert "no cpu left" in replaced.message


def refuse(world: FakeWorld, name: str, reason: str) -> None:
    """A node takes the pod and refuses it at once."""
    trouble = Trouble(reason, "the node has no room")
    world.change(name, phase="Failed", is_ready=False, trouble=trouble, created_at=world.now)


def test_a_node_that_refuses_every_engine_is_given_fewer_and_fewer_and_told_of_once():
    world = FakeWorld().start()
    said, waits = [], []
    for incarnation in range(6):
        refuse(world, world.pod(f"rollout-1-i{incarnation}"), "OutOfcpu")
        plan = world.settle()
        assert plan.requeue_after is not None
        waits.append(plan.requeue_after)
        world.now += timedelta(seconds=plan.requeue_after)
        said += told(world)
    assert waits == [10.0, 20.0, 40.0, 80.0, 160.0, 160.0]
    assert len({each.key for each in said if each.reason == "EngineReplaced"}) == 1
    refuse(world, world.pod("rollout-1-i6"), "OutOfmemory")
    world.now += timedelta(seconds=160)
    said += told(world)
    assert len({each.key for each in said if each.reason == "EngineReplaced"}) == 2


def test_an_engine_that_ran_is_replaced_without_a_longer_wait_and_told_each_time():
    world = FakeWorld().start()
    said = []
    for incarnation in range(4):
        world.run_all()
        lost = world.pod(f"rollout-1-i{incarnation}")
        world.change(lost, created_at=world.now)
        world.now += timedelta(seconds=10)
        world.end(lost, ending(137))
        said += told(world)
    assert world.names("rollout") == ["rollout-0-i0", "rollout-1-i4"]
    assert len({each.key for each in said if each.reason == "EngineReplaced"}) == 4


def test_more_replicas_are_no_replacement():
    world = FakeWorld().start()
    world.spec, world.generation = spec(rollout={"replicas": 4}), 2
    assert told(world) == []


def test_either_end_is_announced_once():
    for code, reason, is_warning in ((0, "Completed", False), (40, "Failed", True)):
        world = FakeWorld().start()
        world.end(world.pod("trainer-a1-0"), ending(code, "the dataset has no column question"))
        (end,) = told(world)
        assert (end.reason, end.is_warning) == (reason, is_warning)
        assert is_warning == ("no column question" in end.message)


def test_an_event_has_a_name_of_its_own_and_the_same_for_the_same_news():
    world = FakeWorld()
    job = world.observed().job
    first, again, other = (
        event_of(job, Announcement("Started", message, key=key), now=world.now)
        for message, key in (("attempt 1 runs", "1"), ("in other words", "1"), ("attempt 2 runs", "2"))
    )
    assert first["metadata"]["name"] == again["metadata"]["name"] != other["metadata"]["name"]
    assert first["involvedObject"]["uid"] == job.uid
    assert len(event_of(job, Announcement("Failed", "x" * 5000, key=""), now=world.now)["message"]) == 1024
