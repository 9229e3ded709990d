"""From a new job to running pods."""

import pytest

from grpo_api.contract.progress import TrainerState
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.observe.observed import Refusal

from .fake_world import IMAGE, FakeWorld, report, spec, termination


def test_a_new_job_gets_its_pods_services_config_and_tokens():
    world = FakeWorld(spec(trainer={"numNodes": 2}))
    world.step()
    assert world.names("trainer") == ["trainer-a1-0", "trainer-a1-1"]
    assert world.names("rollout") == ["rollout-0-i0", "rollout-1-i0"]
    assert len(world.services) == 2
    assert len(world.config_names) == 1
    assert world.num_secrets == 1


def test_tokens_are_made_only_while_no_pod_knows_others():
    world = FakeWorld().start()
    world.change(world.pod("rollout-1-i0"), is_deleting=True)
    world.settle()
    assert ("rollout-1-i1" in world.names("rollout"), world.num_secrets) == (True, 1)
    world.run_all()
    for name in list(world.pods):
        world.change(name, is_deleting=True)
    world.settle()  # every pod was deleted, as the sentence about lost tokens asks for
    assert world.num_secrets == 2


def test_a_trainer_alone_knows_the_tokens_and_keeps_new_ones_from_being_made():
    world = FakeWorld().start()
    world.vanish(world.pod("rollout-0-i0"), world.pod("rollout-1-i0"))
    world.step()
    assert (len(world.names("rollout")), world.num_secrets) == (2, 1)


def test_a_pod_that_has_ended_knows_no_tokens():
    world = FakeWorld().start()
    for name in list(world.pods):
        world.end(name, termination(1, "boom"))
    world.step()
    assert world.num_secrets == 2


def test_what_was_frozen_is_in_the_status_with_the_first_write():
    world = FakeWorld()
    plan = world.plan()
    assert (plan.status.attempt, plan.status.mode, plan.status.image) == (1, "Disaggregated", IMAGE)
    assert plan.status.revision and plan.status.start_time == world.now
    assert plan.status.progress == "0/10"


def test_the_jobs_own_image_goes_before_the_operators():
    world = FakeWorld(spec(image="example.test/mine:2"))
    world.step()
    assert world.status.image == "example.test/mine:2"
    containers = [m["spec"]["containers"][0] for m in world.bodies.values()]
    assert {c["image"] for c in containers} == {"example.test/mine:2"}


def test_every_condition_is_there_the_first_time_a_job_is_seen():
    plan = FakeWorld().plan()
    assert [c.type for c in plan.status.conditions] == list(ConditionType)
    assert {c.observed_generation for c in plan.status.conditions} == {1}


def test_a_second_plan_of_an_unchanged_job_does_nothing():
    world = FakeWorld().start()
    plan = world.plan()
    assert (plan.status, plan.create, plan.delete) == (world.status, (), ())


def test_phases_lead_from_pending_through_starting_to_running():
    world = FakeWorld()
    world.step()
    assert world.status.phase == Phase.PENDING
    world.step()
    assert world.status.phase == Phase.STARTING
    world.run_all()
    world.step()
    assert world.status.phase == Phase.RUNNING
    assert (world.status.trainer.summary, world.status.rollout.summary) == ("1/1", "2/2")


def test_a_job_being_deleted_gets_nothing():
    world = FakeWorld()
    world.is_deleting = True
    plan = world.plan()
    assert (plan.create, plan.delete, plan.status) == ((), (), world.status)


def test_a_spec_that_cannot_be_read_fails_the_job_with_its_sentence():
    world = FakeWorld(problem="algorithm.groupSize: must be at least 2")
    world.settle()
    assert world.status.phase == Phase.FAILED
    failed = world.condition(ConditionType.FAILED)
    assert (failed.status, failed.reason) == ("True", "InvalidSpec")
    assert failed.message == "algorithm.groupSize: must be at least 2"
    assert world.condition(ConditionType.FINISHED).status == "True"
    assert not world.pods


def test_a_huge_reward_still_fits_into_its_column():
    world = FakeWorld().start()
    world.progress = report(reward=1e300)
    world.step()
    assert world.status.reward == "1.000e+300"


def test_progress_becomes_rounded_strings_for_people():
    world = FakeWorld().start()
    world.progress = report()
    world.step()
    status = world.status
    assert (status.step, status.progress, status.reward) == (4, "4/10", "0.123")
    assert (status.tokens_per_second, status.policy_version) == ("1234", "1.4")
    assert status.rollout.current == 2
    assert world.condition(ConditionType.READY).status == "True"


def test_a_report_that_only_proves_life_changes_nothing():
    world = FakeWorld().start()
    world.progress = report(heartbeat=1)
    world.step()
    world.progress = report(heartbeat=2)
    assert world.plan().status == world.status


def test_an_operator_without_a_report_yet_keeps_the_numbers_in_the_status():
    world = FakeWorld().start()
    world.progress = report()
    world.step()
    world.progress = None
    assert world.plan().status == world.status


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("ErrImagePull", "pull access denied for nope"),
        ("CreateContainerConfigError", 'secret "x" not found'),
        ("Unschedulable", "0/1 nodes are available: 1 Insufficient memory."),
    ],
)
def test_a_pod_that_cannot_start_is_explained_and_not_an_end(reason: str, message: str):
    world = FakeWorld()
    world.settle()
    world.change(world.pod("trainer-a1-0"), start_problem=ReasonMessage(reason, message))
    world.change(world.pod("rollout-0-i0"), start_problem=ReasonMessage(reason, message))
    world.settle()
    for kind in (ConditionType.RUNNING, ConditionType.READY, ConditionType.ROLLOUT_READY):
        found = world.condition(kind)
        assert (found.status, found.reason) == ("False", reason)
        assert message in found.message
    assert world.condition(ConditionType.FINISHED).status == "False"


def test_a_refused_pod_is_explained_until_it_can_be_made():
    world = FakeWorld()
    world.status = world.plan().status
    why = ReasonMessage("QuotaExceeded", "Pod copy-x does not fit into the namespace's quota")
    world.refusal = Refusal("copy-x", why)
    world.status = world.plan().status
    assert world.condition(ConditionType.RUNNING).reason == "QuotaExceeded"
    world.refusal = None  # a restarted operator has forgotten it and must not write
    assert world.plan().status == world.status


def test_scaling_adds_and_removes_the_highest_replicas():
    world = FakeWorld(spec(rollout={"replicas": 3})).start()
    world.spec, world.generation = spec(rollout={"replicas": 1}), 2
    world.step()
    assert world.names("rollout") == ["rollout-0-i0"]
    world.vanish_deleted()
    world.settle()
    assert (world.status.rollout.desired, world.status.rollout.replicas) == (1, 1)
    world.spec, world.generation = spec(rollout={"replicas": 2}), 3
    world.settle()
    assert world.names("rollout") == ["rollout-0-i0", "rollout-1-i1"]  # no name is used twice


def test_a_spec_changed_after_the_start_is_refused_when_the_frozen_one_is_lost():
    world = FakeWorld().start()
    world.spec, world.generation = spec(algorithm={"steps": 99}), 2
    world.step()
    assert world.condition(ConditionType.FAILED).reason == "RevisionLost"


def test_a_job_goes_on_under_a_release_that_fills_other_defaults_into_its_spec():
    world = FakeWorld().start()
    revision = world.status.revision
    world.frozen_spec = world.spec = spec(checkpoint={"keep": 7})  # as the newer release reads it
    plan = world.plan()
    assert (plan.status, plan.create, plan.delete) == (world.status, (), ())
    world.end(world.pod("trainer-a1-0"), termination(1, "boom"))
    world.settle()
    assert (world.status.attempt, world.status.revision) == (2, revision)
    volumes = world.bodies[world.pod("trainer-a2-0")]["spec"]["volumes"]
    config = next(volume["configMap"]["name"] for volume in volumes if volume["name"] == "config")
    assert {config} == world.config_names


def test_a_report_older_than_what_another_operator_wrote_is_not_written_over_it():
    world = FakeWorld().start()
    world.progress = report(step=5, policy_version="1.5")
    world.step()
    world.progress = report(step=4, policy_version="1.4", state=TrainerState.WAITING_FOR_ROLLOUT)
    assert world.plan().status == world.status


def test_the_next_attempt_may_go_back_to_its_checkpoint():
    world = FakeWorld().start()
    world.progress = report(step=5, policy_version="1.5")
    world.step()
    world.end(world.pod("trainer-a1-0"), termination(1, "boom"))
    world.settle()
    world.run_all()
    world.progress = report(attempt=2, step=3, policy_version="2.3")
    world.settle()
    assert (world.status.step, world.status.policy_version) == (3, "2.3")
