"""A suspended job: its pods go, its clocks stand still, and it continues as the next attempt, whatever it did
when it was suspended."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from grpo_api.contract.progress import TrainerState
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.observe.process_state import ProcessState
from grpo_operator.plan.draft import EventDraft

from .fake_cluster import NOW, FakeCluster, report, spec, termination, termination_message
from .partly_bound import give_back, half_bound

CLAIM = {"checkpoint": {"claimName": "runs"}}


def with_suspend(cluster: FakeCluster, value: bool | None) -> FakeCluster:
    assert cluster.spec is not None
    cluster.spec = cluster.spec.model_copy(update={"suspend": value})
    cluster.generation += 1
    return cluster


def suspend(cluster: FakeCluster) -> FakeCluster:
    return with_suspend(cluster, True)


def resume(cluster: FakeCluster) -> FakeCluster:
    return with_suspend(cluster, False)


def events_of(cluster: FakeCluster, reason: str) -> list[EventDraft]:
    return [event for event in cluster.plan().events if event.why.reason == reason]


# What it did when it was suspended


def training() -> FakeCluster:
    cluster = FakeCluster(spec(**CLAIM, trainer={"numNodes": 2})).start()
    cluster.progress = report()
    cluster.settle()
    return cluster


def saving() -> FakeCluster:
    cluster = training()
    cluster.progress = report(heartbeat=2, message="a checkpoint is being written")
    cluster.settle()
    return cluster


def exporting() -> FakeCluster:
    cluster = FakeCluster(spec(**CLAIM, export=[{"to": "s3://models/copy"}])).start()
    cluster.progress = report(step=10, checkpoint_step=8, message="the trained model is being written")
    cluster.settle()
    return cluster


def restarting() -> FakeCluster:
    """The gang of attempt 1 has failed, and one of its pods has not ended yet."""
    cluster = training()
    cluster.end(cluster.pod("trainer-a1-1"), termination(1, reason="OOMKilled"))
    cluster.settle()
    assert cluster.status.phase is Phase.RESTARTING
    return cluster


def pausing() -> FakeCluster:
    """Two attempts have failed, and the third waits."""
    cluster = FakeCluster(spec(**CLAIM)).start()
    for attempt in (1, 2):
        cluster.end(cluster.pod(f"trainer-a{attempt}-0"), termination(1, "boom"))
        cluster.settle()
        cluster.run_all()
        cluster.settle()
    assert (cluster.status.attempt, cluster.names("trainer")[-1]) == (3, "trainer-a2-0")
    return cluster


def waiting_for_room() -> FakeCluster:
    cluster = half_bound()
    assert cluster.status.waiting_for_room is not None
    return cluster


def held_back() -> FakeCluster:
    cluster = half_bound()
    give_back(cluster)
    assert cluster.status.is_held_back
    return cluster


def starting() -> FakeCluster:
    cluster = FakeCluster(spec(**CLAIM)).start()
    cluster.progress = report(state=TrainerState.STARTING, step=0)
    cluster.settle()
    assert cluster.status.starting_since is not None
    return cluster


@pytest.mark.parametrize(
    "doing",
    [training, saving, exporting, starting, restarting, pausing, waiting_for_room, held_back],
    ids=lambda each: each.__name__,
)
def test_a_job_is_suspended_whatever_it_does_and_continues_as_the_next_attempt(
    doing: Callable[[], FakeCluster],
):
    cluster = doing()
    before = cluster.status
    suspend(cluster).settle()
    assert cluster.running() == [], "its pods end"
    assert all(pod.is_deleting or pod.is_over for pod in cluster.pods.values())
    assert (cluster.status.phase, cluster.status.attempt) == (Phase.SUSPENDED, before.attempt)
    cluster.vanish_deleted()
    cluster.settle()
    assert cluster.condition(ConditionType.SUSPENDED).status == "True"
    assert cluster.names("rollout") == []
    assert (cluster.status.waiting_for_room, cluster.status.starting_since) == (None, None)
    assert (cluster.status.trainer.summary, cluster.status.rollout.summary) == ("0/0", "0/0")

    cluster.now += timedelta(days=30)
    plan = cluster.settle()
    assert plan.requeue_after is None, "no clock runs"
    assert (plan.create, plan.delete, cluster.status.phase) == ((), (), Phase.SUSPENDED)

    cluster.has_room = True
    resume(cluster).settle()
    counts = ("restarts", "disruptions", "failures_since_progress", "disruptions_since_progress")
    assert {name: getattr(cluster.status, name) for name in counts} == {
        name: getattr(before, name) for name in counts
    }
    assert cluster.status.attempt == before.attempt + 1
    nodes = range(cluster.status.trainer.desired)
    made = [f"trainer-a{before.attempt + 1}-{index}" for index in nodes]
    assert [name for name in cluster.names("trainer") if name in made] == made
    cluster.run_all()
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    assert cluster.status.phase is Phase.RUNNING
    assert cluster.condition(ConditionType.SUSPENDED).reason == "Unsuspended"
    assert cluster.names("rollout") == ["rollout-0-i0", "rollout-1-i0"]


def test_the_decision_is_in_status_before_a_pod_is_deleted_and_an_operator_that_was_killed_follows_it():
    cluster = suspend(training())
    plan = cluster.plan()
    assert plan.status.is_suspended and len(plan.delete) == 4
    cluster.status, cluster.state = plan.status, ProcessState()
    cluster.settle()
    assert cluster.names("trainer") == []


def test_pods_have_the_grace_period_of_their_specs_for_a_checkpoint():
    plan = suspend(training()).plan()
    assert {deletion.grace_seconds for deletion in plan.delete} == {None}


def test_how_the_pods_end_is_no_failure_and_the_last_checkpoint_is_in_the_status():
    cluster = suspend(training())
    cluster.settle()
    final = report(step=5, checkpoint_step=5, state=TrainerState.STOPPING)
    said = termination_message(143, "Terminated", "asked to stop", progress=final)
    cluster.end(cluster.pod("trainer-a1-0"), termination(143, said))
    cluster.vanish(cluster.pod("trainer-a1-1"))
    cluster.settle()
    assert (cluster.status.attempt, cluster.status.last_failure) == (1, None)
    assert (cluster.status.checkpoint_step, cluster.status.highest_checkpoint_step) == (5, 5)
    cluster.vanish_deleted()
    cluster.settle()
    said_now = cluster.condition(ConditionType.SUSPENDED).message
    assert said_now.startswith("spec.suspend is true; attempt 2 follows") and said_now.endswith("of step 5")


def test_the_condition_is_true_once_the_pods_are_gone_and_names_one_that_is_not():
    cluster = suspend(training())
    cluster.settle()
    condition = cluster.condition(ConditionType.SUSPENDED)
    assert (condition.status, condition.reason) == ("False", "Suspending")
    assert cluster.pod("trainer-a1-0") in condition.message and "saves a checkpoint" in condition.message
    for kind in (ConditionType.READY, ConditionType.RUNNING, ConditionType.ROLLOUT_READY):
        assert cluster.condition(kind).reason == "Suspending"
    cluster.vanish(*(pod.name for pod in list(cluster.pods.values()) if "-trainer-" in pod.name))
    cluster.settle()
    assert cluster.pod("rollout-0-i0") in cluster.condition(ConditionType.SUSPENDED).message
    for name in ("rollout-0-i0", "rollout-1-i0"):
        cluster.change(cluster.pod(name), phase="Succeeded")
    cluster.settle()
    assert cluster.condition(ConditionType.SUSPENDED).status == "False", "the objects are still there"
    cluster.vanish_deleted()
    cluster.settle()
    condition = cluster.condition(ConditionType.SUSPENDED)
    assert (condition.status, condition.reason) == ("True", "Suspended")
    assert cluster.condition(ConditionType.READY).status == "False"


def test_a_pod_that_does_not_end_is_asked_about_as_in_a_restart():
    cluster = suspend(training())
    cluster.settle()
    ends_by = NOW + timedelta(seconds=60)
    cluster.change(cluster.pod("trainer-a1-0"), must_end_by=ends_by)
    assert cluster.plan().requeue_after == 120
    cluster.now = NOW + timedelta(seconds=120)
    cluster.settle()
    assert "is the node lost?" in cluster.condition(ConditionType.SUSPENDED).message


def test_a_job_that_continues_before_its_pods_have_ended_waits_for_them():
    cluster = suspend(training())
    cluster.settle()
    resume(cluster).settle()
    assert (cluster.status.attempt, cluster.names("trainer")) == (2, [])
    assert "must end first" in cluster.condition(ConditionType.RUNNING).message
    cluster.vanish_deleted()
    cluster.settle()
    assert cluster.names("trainer") == ["trainer-a2-0", "trainer-a2-1"]


def test_a_job_that_is_created_suspended_has_no_children_and_begins_later():
    cluster = FakeCluster(spec(suspend=True))
    plan = cluster.settle()
    assert (plan.create, cluster.pods, cluster.config_names, cluster.services) == ((), {}, set(), {})
    assert (cluster.status.phase, cluster.status.attempt, cluster.status.start_time) == (
        Phase.SUSPENDED,
        0,
        None,
    )
    assert cluster.condition(ConditionType.SUSPENDED).status == "True"
    cluster.now += timedelta(hours=1)
    resume(cluster).start()
    assert (cluster.status.phase, cluster.status.attempt) == (Phase.RUNNING, 1)
    assert (cluster.status.start_time, cluster.status.suspended_seconds) == (cluster.now, 0)


def test_a_suspended_job_that_cannot_begin_says_why_once_it_is_no_longer_suspended():
    two_pods = {"engine": {"tensorParallelSize": 2}, "rollout": {"replicas": 1, "nodesPerReplica": 2}}
    cluster = FakeCluster(spec(suspend=True, **two_pods))
    cluster.has_network_policies = False
    cluster.settle()
    assert cluster.condition(ConditionType.READY).reason == "Suspended"
    resume(cluster).settle()
    assert cluster.condition(ConditionType.READY).reason == "NetworkPoliciesOff"
    assert (cluster.status.phase, cluster.status.is_suspended) == (Phase.PENDING, False)


def test_a_job_that_has_done_every_step_completes_although_it_is_suspended():
    cluster = suspend(training())
    cluster.settle()
    done = report(step=10, checkpoint_step=10, state=TrainerState.DONE)
    cluster.end(
        cluster.pod("trainer-a1-0"), termination(0, termination_message(0, "Done", "", progress=done))
    )
    cluster.vanish(cluster.pod("trainer-a1-1"))
    cluster.settle()
    assert (cluster.status.phase, cluster.status.is_suspended) == (Phase.SUCCEEDED, False)
    assert cluster.condition(ConditionType.SUSPENDED).status == "False"


def test_a_job_whose_last_report_was_that_everything_is_written_completes_without_its_pod():
    cluster = suspend(training())
    cluster.progress = report(step=10, checkpoint_step=10)
    cluster.settle()
    assert cluster.status.phase is Phase.SUSPENDED, "its pod may say more"
    cluster.vanish_deleted()
    cluster.settle()
    assert cluster.status.phase is Phase.SUCCEEDED


def test_a_model_that_is_being_uploaded_is_uploaded_by_the_next_attempt():
    cluster = exporting()
    cluster.progress = report(step=10, checkpoint_step=10, message="the model is being uploaded")
    suspend(cluster).settle()
    cluster.vanish_deleted()
    cluster.settle()
    assert cluster.status.phase is Phase.SUSPENDED


@pytest.mark.parametrize("code", [0, 40])
def test_a_job_that_has_ended_is_not_suspended(code: int):
    cluster = FakeCluster(spec(**CLAIM)).start()
    cluster.end(cluster.pod("trainer-a1-0"), termination(code, "the end"))
    cluster.settle()
    before = cluster.status
    suspend(cluster).settle()
    assert (cluster.status.phase, cluster.status.suspension) == (before.phase, None)
    assert not any(c.type == ConditionType.SUSPENDED for c in cluster.status.conditions)


def test_a_job_that_was_never_suspended_has_no_such_condition():
    cluster = training()
    assert not any(c.type == ConditionType.SUSPENDED for c in cluster.status.conditions)


def test_a_pod_that_is_evicted_at_the_same_time_is_no_disruption():
    cluster = FakeCluster(spec(**CLAIM)).start()
    cluster.end(cluster.pod("trainer-a1-0"), termination(143, "the node was drained"))
    cluster.change(cluster.pod("trainer-a1-0"), disruption=ReasonMessage("Evicted", "low on memory"))
    suspend(cluster).settle()
    assert (cluster.status.attempt, cluster.status.disruptions) == (1, 0)


def test_a_failure_from_before_the_suspension_is_in_the_status_and_is_not_counted():
    cluster = training()
    said = termination_message(1, Reason.GPU_OUT_OF_MEMORY, "out of memory")
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, said))
    suspend(cluster).settle()
    failure = cluster.status.last_failure
    assert failure is not None
    assert (failure.pod, failure.exit_code) == (cluster.pod("trainer-a1-0"), 1)
    assert failure.message.startswith("out of memory; these fields can be changed in a new job only")
    assert cluster.status.micro_batch_tokens is not None, "the next attempt would run out of it too"
    assert (cluster.status.phase, cluster.status.restarts) == (Phase.SUSPENDED, 0)


def test_a_spec_that_cannot_be_read_changes_nothing_about_a_suspension():
    cluster = suspend(training())
    cluster.settle()
    cluster.vanish_deleted()
    cluster.settle()
    cluster.stored_spec, cluster.spec, cluster.problem = spec(**CLAIM), None, "spec.new: unknown"
    cluster.settle()
    assert (cluster.status.phase, cluster.names("trainer")) == (Phase.SUSPENDED, [])


def test_a_job_that_is_created_suspended_stays_so_while_its_spec_cannot_be_read():
    cluster = FakeCluster(spec(suspend=True))
    cluster.settle()
    cluster.spec, cluster.problem = None, "spec.new: unknown"
    cluster.settle()
    assert cluster.condition(ConditionType.READY).reason == "SchemaSkew"
    assert cluster.condition(ConditionType.SUSPENDED).reason == "Suspended"


def test_people_get_an_event_for_the_suspension_and_one_for_its_end():
    cluster = suspend(training())
    (event,) = events_of(cluster, "Suspended")
    assert event.why.message == "spec.suspend is true" and not event.is_warning
    cluster.settle()
    cluster.vanish_deleted()
    cluster.settle()
    cluster.now += timedelta(seconds=90)
    resume(cluster)
    (event,) = events_of(cluster, "Unsuspended")
    assert event.why.message == "attempt 2 follows: the job was suspended for 90 s"
    assert events_of(cluster, "Restarting") == []


@pytest.mark.parametrize("has_vanished", [True, False])
def test_engines_after_a_suspension_replace_nobody(has_vanished: bool):
    cluster = suspend(training())
    cluster.settle()
    trainers = [pod.name for pod in cluster.pods.values() if "-trainer-" in pod.name]
    cluster.vanish(*trainers)
    if has_vanished:
        cluster.vanish_deleted()
    cluster.settle()
    cluster.now += timedelta(seconds=5)
    resume(cluster)
    found = []
    for _ in range(5):
        found += events_of(cluster, "EngineReplaced")
        cluster.step()
        cluster.run_all()
    assert len(cluster.names("rollout")) == 2 and found == []
