"""From a new job to running pods."""

import pytest

from grpo_api.contract.progress import AsyncProgress, TrainerState
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import AsyncStatus, ConditionType, Phase
from grpo_operator.observe.observed import Refusal

from .fake_cluster import IMAGE, FakeCluster, report, spec, termination

ONLY_ONCE_TRUE = (
    ConditionType.MISMATCH_HIGH,
    ConditionType.NO_LEARNING_SIGNAL,
    ConditionType.ENVIRONMENT_FAILING,
    ConditionType.SUSPENDED,
    ConditionType.STALLED,
)


def test_a_new_job_gets_its_pods_services_config_and_tokens():
    cluster = FakeCluster(spec(trainer={"numNodes": 2}))
    cluster.settle()
    assert cluster.names("trainer") == ["trainer-a1-0", "trainer-a1-1"]
    assert cluster.names("rollout") == ["rollout-0-i0", "rollout-1-i0"]
    assert len(cluster.services) == 2
    assert len(cluster.config_names) == 1
    assert cluster.num_secrets == 1


def test_tokens_are_made_only_while_no_pod_knows_others():
    cluster = FakeCluster().start()
    cluster.change(cluster.pod("rollout-1-i0"), is_deleting=True)
    cluster.settle()
    assert ("rollout-1-i1" in cluster.names("rollout"), cluster.num_secrets) == (True, 1)
    cluster.run_all()
    for name in list(cluster.pods):
        cluster.change(name, is_deleting=True)
    cluster.settle()  # every pod was deleted, as the sentence about lost tokens asks for
    assert cluster.num_secrets == 2


def test_a_trainer_alone_knows_the_tokens_and_keeps_new_ones_from_being_made():
    cluster = FakeCluster().start()
    cluster.vanish(cluster.pod("rollout-0-i0"), cluster.pod("rollout-1-i0"))
    cluster.step()
    assert (len(cluster.names("rollout")), cluster.num_secrets) == (2, 1)


def test_a_pod_that_has_ended_knows_no_tokens():
    cluster = FakeCluster().start()
    for name in list(cluster.pods):
        cluster.end(name, termination(1, "boom"))
    cluster.step()
    assert cluster.num_secrets == 2


def test_what_was_recorded_is_in_the_status_with_the_first_write():
    cluster = FakeCluster()
    plan = cluster.plan()
    assert (plan.status.attempt, plan.status.mode, plan.status.image) == (1, "Disaggregated", IMAGE)
    assert plan.status.revision and plan.status.start_time == cluster.now
    assert plan.status.progress == "0/10"


def test_the_jobs_own_image_goes_before_the_operators():
    cluster = FakeCluster(spec(image="example.test/mine:2"))
    cluster.step()
    assert cluster.status.image == "example.test/mine:2"
    containers = [m["spec"]["containers"][0] for m in cluster.bodies.values()]
    assert {c["image"] for c in containers} == {"example.test/mine:2"}


def test_every_condition_is_there_the_first_time_a_job_is_seen():
    plan = FakeCluster().plan()
    assert [c.type for c in plan.status.conditions] == [
        kind for kind in ConditionType if kind not in ONLY_ONCE_TRUE
    ]
    assert {c.observed_generation for c in plan.status.conditions} == {1}


def test_a_second_plan_of_an_unchanged_job_does_nothing():
    cluster = FakeCluster().start()
    plan = cluster.plan()
    assert (plan.status, plan.create, plan.delete) == (cluster.status, (), ())


def test_phases_lead_from_pending_through_starting_to_running():
    cluster = FakeCluster()
    cluster.step()
    assert cluster.status.phase == Phase.PENDING
    cluster.step()
    assert cluster.status.phase == Phase.STARTING
    cluster.run_all()
    cluster.step()
    assert cluster.status.phase == Phase.RUNNING
    assert (cluster.status.trainer.summary, cluster.status.rollout.summary) == ("1/1", "2/2")


def test_a_job_being_deleted_gets_nothing():
    cluster = FakeCluster()
    cluster.is_deleting = True
    plan = cluster.plan()
    assert (plan.create, plan.delete, plan.status) == ((), (), cluster.status)


def test_a_huge_reward_still_fits_into_its_column():
    cluster = FakeCluster().start()
    cluster.progress = report(reward=1e300)
    cluster.step()
    assert cluster.status.reward == "1.000e+300"


def test_progress_becomes_rounded_strings_for_people():
    cluster = FakeCluster().start()
    cluster.progress = report()
    cluster.step()
    status = cluster.status
    assert (status.step, status.progress, status.reward) == (4, "4/10", "0.123")
    assert (status.tokens_per_second, status.policy_version) == ("1234", "1.4")
    assert status.rollout.current == 2
    assert cluster.condition(ConditionType.READY).status == "True"


def test_how_far_sampling_is_ahead_is_in_the_status_and_outlasts_a_restart():
    cluster = FakeCluster().start()
    cluster.progress = report(
        asynchronous=AsyncProgress(mean_staleness=1.0625, max_staleness=3, num_queued=5, num_running=12)
    )
    cluster.step()
    found = AsyncStatus(mean_staleness="1.06", max_staleness=3, num_queued=5, num_running=12)
    assert cluster.status.asynchronous == found
    cluster.progress = report(resumed_from_step=4)
    cluster.step()
    assert cluster.status.asynchronous == found
    cluster.progress = report(step=5)
    cluster.step()
    assert cluster.status.asynchronous is None


def test_a_report_that_only_proves_life_changes_nothing():
    cluster = FakeCluster().start()
    cluster.progress = report(heartbeat=1)
    cluster.step()
    cluster.progress = report(heartbeat=2)
    assert cluster.plan().status == cluster.status


def test_an_operator_without_a_report_yet_keeps_the_numbers_in_the_status():
    cluster = FakeCluster().start()
    cluster.progress = report()
    cluster.step()
    cluster.progress = None
    assert cluster.plan().status == cluster.status


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("ErrImagePull", "pull access denied for nope"),
        ("CreateContainerConfigError", 'secret "x" not found'),
        ("Unschedulable", "0/1 nodes are available: 1 Insufficient memory."),
    ],
)
def test_a_pod_that_cannot_start_is_explained_and_not_an_end(reason: str, message: str):
    cluster = FakeCluster()
    cluster.settle()
    cluster.change(cluster.pod("trainer-a1-0"), start_problem=ReasonMessage(reason, message))
    cluster.change(cluster.pod("rollout-0-i0"), start_problem=ReasonMessage(reason, message))
    cluster.settle()
    for kind in (ConditionType.RUNNING, ConditionType.READY, ConditionType.ROLLOUT_READY):
        found = cluster.condition(kind)
        assert (found.status, found.reason) == ("False", reason)
        assert message in found.message
    assert cluster.condition(ConditionType.FINISHED).status == "False"


def test_a_refused_pod_is_explained_until_it_can_be_made():
    cluster = FakeCluster()
    cluster.status = cluster.plan().status
    why = ReasonMessage("QuotaExceeded", "Pod copy-x does not fit into the namespace's quota")
    cluster.refusal = Refusal("copy-x", why)
    cluster.status = cluster.plan().status
    assert cluster.condition(ConditionType.RUNNING).reason == "QuotaExceeded"
    cluster.refusal = None  # a restarted operator has forgotten it and must not write
    assert cluster.plan().status == cluster.status


def test_scaling_adds_and_removes_the_highest_replicas():
    cluster = FakeCluster(spec(rollout={"replicas": 3})).start()
    cluster.spec, cluster.generation = spec(rollout={"replicas": 1}), 2
    cluster.step()
    assert cluster.names("rollout") == ["rollout-0-i0"]
    cluster.vanish_deleted()
    cluster.settle()
    assert (cluster.status.rollout.desired, cluster.status.rollout.replicas) == (1, 1)
    cluster.spec, cluster.generation = spec(rollout={"replicas": 2}), 3
    cluster.settle()
    assert cluster.names("rollout") == ["rollout-0-i0", "rollout-1-i1"]  # no name is used twice


def test_a_job_goes_on_under_a_release_that_fills_other_defaults_into_its_spec():
    cluster = FakeCluster().start()
    revision = cluster.status.revision
    cluster.stored_spec = cluster.spec = spec(checkpoint={"keep": 7})  # as the newer release reads it
    plan = cluster.plan()
    assert (plan.status, plan.create, plan.delete) == (cluster.status, (), ())
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.settle()
    assert (cluster.status.attempt, cluster.status.revision) == (2, revision)
    volumes = cluster.bodies[cluster.pod("trainer-a2-0")]["spec"]["volumes"]
    config = next(volume["configMap"]["name"] for volume in volumes if volume["name"] == "config")
    assert {config} == cluster.config_names


def test_a_report_older_than_what_another_operator_wrote_is_not_written_over_it():
    cluster = FakeCluster().start()
    cluster.progress = report(step=5, policy_version="1.5")
    cluster.step()
    cluster.progress = report(step=4, policy_version="1.4", state=TrainerState.WAITING_FOR_ROLLOUT)
    assert cluster.plan().status == cluster.status


def test_the_next_attempt_may_go_back_to_its_checkpoint():
    cluster = FakeCluster().start()
    cluster.progress = report(step=5, policy_version="1.5")
    cluster.step()
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.settle()
    cluster.run_all()
    cluster.progress = report(attempt=2, step=3, policy_version="2.3")
    cluster.settle()
    assert (cluster.status.step, cluster.status.policy_version) == (3, "2.3")
