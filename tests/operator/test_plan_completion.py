"""When a job is complete, and what becomes of its pods then."""

from datetime import timedelta

from grpo_api.contract.progress import TrainerState
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.plan.policies.completion import TEARDOWN_SECONDS

from .fake_world import FakeWorld, report, spec, termination, termination_message


def two_nodes() -> FakeWorld:
    return FakeWorld(spec(trainer={"numNodes": 2})).start()


def test_a_job_is_complete_when_pod_0_has_done_every_step():
    world = two_nodes()
    final = report(step=10, reward=0.9876, state=TrainerState.DONE)
    world.end(
        world.pod("trainer-a1-0"), termination(0, termination_message(0, "Done", "done", progress=final))
    )
    plan = world.step()
    assert plan.requeue_after is not None  # the other pod may end by itself
    world.end(world.pod("trainer-a1-1"), termination(1, "Connection closed by peer"))
    world.settle()
    assert (world.status.phase, world.status.progress, world.status.reward) == (
        Phase.SUCCEEDED,
        "10/10",
        "0.988",
    )
    assert world.condition(ConditionType.COMPLETE).status == "True"
    assert world.condition(ConditionType.READY).status == "True"
    assert world.condition(ConditionType.FINISHED).status == "True"
    assert world.status.last_failure is None
    assert world.names("rollout") == []
    assert world.names("trainer") == ["trainer-a1-0", "trainer-a1-1"]


def test_a_finished_job_stays_finished_whatever_happens_to_its_pods():
    world = FakeWorld().start()
    world.end(world.pod("trainer-a1-0"), termination(0))
    world.settle()
    world.vanish(*list(world.pods))
    plan = world.plan()
    assert (plan.status, plan.create) == (world.status, ())


def test_a_trainer_that_is_done_is_done_even_if_a_helper_of_it_ran_out_of_memory():
    world = FakeWorld().start()
    world.end(world.pod("trainer-a1-0"), termination(0, reason="OOMKilled"))
    world.settle()
    assert world.status.phase == Phase.SUCCEEDED


def test_a_pod_that_was_evicted_after_it_had_done_its_part_is_no_failure():
    world = two_nodes()
    world.change(
        world.pod("trainer-a1-1"),
        phase="Failed",
        termination=termination(0),
        disruption=ReasonMessage("Evicted", "low on memory"),
    )
    world.settle()
    assert world.status.attempt == 1


def test_a_gang_of_which_one_pod_has_done_its_part_still_runs():
    world = two_nodes()
    world.end(world.pod("trainer-a1-1"), termination(0))
    world.settle()
    assert world.status.phase == Phase.RUNNING
    assert world.condition(ConditionType.RUNNING).status == "True"


def test_the_other_pods_have_a_minute_to_end_and_are_then_stopped():
    world = two_nodes()
    world.end(world.pod("trainer-a1-0"), termination(0))
    world.now += timedelta(seconds=TEARDOWN_SECONDS - 1)
    assert world.step().requeue_after == 1.0
    assert world.status.phase == Phase.RUNNING
    world.now += timedelta(seconds=1)
    world.settle()
    assert world.status.phase == Phase.SUCCEEDED
    assert world.names("trainer", is_deleting=True) == ["trainer-a1-1"]
    assert (world.status.trainer.ready, world.status.trainer.summary) == (0, "0/0")


def test_a_pod_that_is_being_deleted_is_not_waited_for():
    world = two_nodes()
    world.change(
        world.pod("trainer-a1-1"), is_deleting=True, disruption=ReasonMessage("PodDeleted", "deleted")
    )
    world.end(world.pod("trainer-a1-0"), termination(0))
    world.step()
    assert world.status.phase == Phase.SUCCEEDED
