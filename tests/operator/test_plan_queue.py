"""A job in a queue of Kueue: its Workload, what it makes of Kueue's decisions, and what it tells Kueue."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from grpo_api.contract import labels
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.cluster.kinds import RESOURCE_FLAVORS, WORKLOAD_PRIORITY_CLASSES
from grpo_operator.observe.observed import Refusal
from grpo_operator.plan.policies.queue import POSITION_SECONDS

from . import fake_kueue as kueue
from .fake_cluster import FakeCluster, run, termination
from .queued_job import (
    CLAIM,
    FLAVOR,
    a_cluster,
    change_spec,
    of_two_pods,
    queued,
    settle_with_pods,
    training,
    unreadable,
    workload,
)

# Before it is admitted


def test_nothing_but_the_workload_is_made_before_the_job_is_admitted():
    cluster = queued()
    assert list(cluster.workloads) == [cluster.base]
    assert cluster.pods == {} and cluster.services == {} and cluster.config_names == set()
    assert (cluster.status.phase, cluster.status.attempt) == (Phase.QUEUED, 0)
    assert cluster.status.queue and cluster.status.queue.name == "team"


def test_the_workload_asks_for_the_very_pods_of_the_job():
    cluster = queued(trainer={"numNodes": 2, "processesPerNode": 1}, scheduling={"priorityClass": "high"})
    made = workload(cluster)
    trainer, rollout = made["spec"]["podSets"]
    assert (trainer["name"], trainer["count"]) == ("trainer", 2)
    assert (rollout["name"], rollout["count"]) == ("rollout", 2)
    assert made["metadata"]["labels"][labels.WORKLOAD_JOB_UID] == cluster.uid
    assert [owner["controller"] for owner in made["metadata"]["ownerReferences"]] == [False]
    assert "finalizers" not in made["metadata"]
    assert made["spec"]["queueName"] == "team" and made["spec"]["priority"] == 1000
    assert made["spec"]["priorityClassRef"] == {
        "group": "kueue.x-k8s.io",
        "kind": "WorkloadPriorityClass",
        "name": "high",
    }
    kueue.admit(made)
    cluster.settle()
    pod = cluster.bodies[cluster.pod("trainer-a1-0")]
    of_template, of_pod = (body["spec"]["containers"][0]["resources"] for body in (trainer["template"], pod))
    assert of_template == of_pod
    assert set(trainer["template"]["metadata"]) <= {"labels", "annotations"}


def test_a_label_of_the_job_names_queue_and_priority_where_the_spec_does_not():
    cluster = a_cluster(queueName=None)
    cluster.labels = {labels.QUEUE_NAME: "other", labels.PRIORITY_CLASS: "high"}
    cluster.settle()
    assert workload(cluster)["spec"]["queueName"] == "other"
    assert workload(cluster)["spec"]["priority"] == 1000
    kueue.admit(workload(cluster))
    cluster.start()
    cluster.labels = {}
    cluster.settle()
    assert cluster.status.queue and cluster.status.queue.name == "other"


def test_a_job_that_leaves_its_queue_before_it_is_admitted_leaves_no_workload():
    cluster = a_cluster(queueName=None)
    cluster.labels = {labels.QUEUE_NAME: "team"}
    cluster.settle()
    cluster.labels = {}
    cluster.start()
    assert cluster.names("trainer") == ["trainer-a1-0"] and cluster.workloads == {}


def test_it_says_what_it_waits_for_in_the_words_of_kueue():
    cluster = queued()
    message = "couldn't assign flavors to pod set trainer: insufficient unused quota for cpu"
    kueue.keep_waiting(workload(cluster), message)
    cluster.settle()
    for kind in (ConditionType.SUSPENDED, ConditionType.READY, ConditionType.RUNNING):
        found = cluster.condition(kind)
        assert found.reason == "Queued" and f"queue team: Pending: {message}" in found.message


@pytest.mark.parametrize(
    ("num", "said"), [(0, "it is the first in its queue"), (3, "3 before it in its queue")]
)
def test_its_position_in_the_queue_is_said_where_kueue_says_it(num: int, said: str):
    cluster = queued()
    kueue.keep_waiting(workload(cluster), "insufficient quota")
    cluster.num_before_in_queue = num
    plan = cluster.settle()
    assert f"Pending: insufficient quota ({said})" in cluster.condition(ConditionType.READY).message
    assert plan.requeue_after == POSITION_SECONDS


def test_a_job_that_is_admitted_at_once_is_not_said_to_have_waited_or_to_have_been_suspended():
    cluster = a_cluster()
    written = [*cluster.plan().events]
    cluster.settle()
    kueue.admit(workload(cluster))
    written += cluster.plan().events
    cluster.settle()
    assert [event.why.reason for event in written] == ["ModeChosen", "Admitted"]
    assert written[1].why.message == "attempt 1 follows: queue team has admitted the job after 0 s"
    assert cluster.condition(ConditionType.SUSPENDED).reason == "Admitted"


def test_people_get_an_event_once_kueue_has_no_quota_for_a_job_and_one_when_it_is_admitted():
    cluster = queued()
    kueue.keep_waiting(workload(cluster), "insufficient unused quota for cpu")
    (event,) = cluster.plan().events
    assert event.why == ReasonMessage("Queued", "queue team: Pending: insufficient unused quota for cpu")
    cluster.settle()
    assert cluster.plan().events == ()
    cluster.now += timedelta(seconds=90)
    kueue.admit(workload(cluster))
    event = next(event for event in cluster.plan().events if event.why.reason == "Admitted")
    assert event.why.message == "attempt 1 follows: queue team has admitted the job after 90 s"


def test_a_queued_job_gets_the_priority_that_its_label_names_by_now():
    cluster = a_cluster(queueName=None)
    cluster.labels = {labels.QUEUE_NAME: "team"}
    cluster.settle()
    cluster.labels |= {labels.PRIORITY_CLASS: "high"}
    cluster.settle()
    assert workload(cluster)["spec"]["priority"] == 1000
    cluster.labels |= {labels.PRIORITY_CLASS: "higher"}
    cluster.cluster_objects[WORKLOAD_PRIORITY_CLASSES, "higher"] = "there is no WorkloadPriorityClass higher"
    cluster.settle()
    assert workload(cluster)["spec"]["priority"] == 1000
    assert "; there is no WorkloadPriorityClass higher" in cluster.condition(ConditionType.READY).message


def test_a_queue_that_nobody_serves_is_asked_about():
    found = queued().condition(ConditionType.READY)
    assert "does LocalQueue team exist?" in found.message


def test_reserved_quota_is_not_enough():
    cluster = queued()
    kueue.reserve(workload(cluster))
    workload(cluster)["status"]["admissionChecks"] = [
        {"name": "budget", "state": "Ready", "message": "there is money"},
        {"name": "capacity", "state": "Pending", "message": "Waiting for the ProvisioningRequest"},
        {"name": "licence", "state": "Pending", "message": ""},
    ]
    cluster.settle()
    assert cluster.pods == {}
    open_checks = "capacity (Waiting for the ProvisioningRequest), licence (Pending)"
    said = cluster.condition(ConditionType.READY).message
    assert f"admission checks are not over: {open_checks}" in said


def test_a_job_with_quota_anew_waits_for_its_checks_and_not_for_quota():
    cluster = training()
    kueue.evict(workload(cluster))
    settle_with_pods(cluster)
    kueue.reserve(workload(cluster))  # Admitted stays False, because of NoReservation
    cluster.settle()
    assert "the quota is reserved" in cluster.condition(ConditionType.READY).message


def test_a_workload_that_somebody_has_deactivated_is_named():
    cluster = queued()
    kueue.keep_waiting(workload(cluster), "insufficient quota")
    workload(cluster)["spec"]["active"] = False
    kueue.evict(workload(cluster), reason="Deactivated", message="The workload is deactivated")
    cluster.settle()
    said = cluster.condition(ConditionType.READY).message
    assert "team: Deactivated: The workload is deactivated; Kueue does not admit Workload" in said


@pytest.mark.parametrize("kind", [RESOURCE_FLAVORS, WORKLOAD_PRIORITY_CLASSES])
def test_what_cannot_be_read_is_said_and_nothing_is_made(kind: Any):
    cluster = a_cluster(scheduling={"priorityClass": "high"})
    name = "gpu" if kind == RESOURCE_FLAVORS else "high"
    cluster.cluster_objects[kind, name] = f"the operator may not read {kind.name} {name}"
    cluster.settle()
    if cluster.workloads:
        kueue.admit(workload(cluster))
        cluster.settle()
    found = cluster.condition(ConditionType.READY)
    assert (found.reason, cluster.pods) == ("QueueUnavailable", {})
    assert f"the operator may not read {kind.name} {name}" in found.message


def test_without_kueue_a_new_job_waits_and_one_that_trains_goes_on():
    new = a_cluster()
    new.queue_problem = "this operator does not look at Kueue"
    (event,) = new.plan().events
    said = "queue team: this operator does not look at Kueue"
    assert (event.why, event.is_warning) == (ReasonMessage("QueueUnavailable", said), True)
    new.settle()
    assert new.condition(ConditionType.READY).reason == "QueueUnavailable"
    assert new.workloads == {} and new.pods == {}
    cluster = training()
    cluster.queue_problem, cluster.workloads = "the list is refused", {}
    cluster.settle()
    assert cluster.status.phase is Phase.RUNNING and cluster.running() != []


def refused(cluster: FakeCluster, message: str) -> None:
    """The API server does not take the Workload of the job."""
    cluster.refused_pods = {cluster.base}
    cluster.refusal = Refusal(cluster.base, ReasonMessage("QueueUnavailable", message))


def test_a_job_goes_on_without_its_workload_where_no_other_can_be_made_and_gets_no_other_pod():
    cluster = training()
    before = cluster.running()
    cluster.workloads = {}
    refused(cluster, "the cluster does not know workloads")
    cluster.settle()
    assert cluster.running() == before and cluster.status.phase is Phase.RUNNING
    said = "the job goes on with the pods that it has: queue team: the cluster does not know workloads"
    assert said in cluster.condition(ConditionType.READY).message
    cluster.vanish(cluster.pod("rollout-1-i0"))
    cluster.settle()
    assert cluster.names("rollout") == ["rollout-0-i0"]
    said = "engine 1 is in queue team: the cluster does not know workloads"
    assert said in cluster.condition(ConditionType.ROLLOUT_READY).message
    cluster.vanish(cluster.pod("trainer-a1-0"))
    cluster.settle()
    assert (cluster.status.attempt, cluster.names("trainer")) == (2, [])
    assert cluster.condition(ConditionType.RUNNING).reason == "QueueUnavailable"


def test_a_job_leaves_its_queue_where_kueue_does_not_come_back():
    cluster = training()
    cluster.queue_problem, cluster.workloads = "the list is refused", {}
    change_spec(cluster, suspend=True)
    settle_with_pods(cluster)
    change_spec(cluster, queue_name=None)
    cluster.settle()
    change_spec(cluster, suspend=False)
    cluster.progress = None
    settle_with_pods(cluster)
    assert cluster.status.queue is None and cluster.names("trainer") == ["trainer-a2-0"]


def without_network_policies(cluster: FakeCluster) -> None:
    cluster.has_network_policies = False


@pytest.mark.parametrize(
    ("how", "reason"), [(unreadable, "SchemaSkew"), (without_network_policies, "NetworkPoliciesOff")]
)
def test_a_job_that_cannot_begin_asks_for_no_quota_and_says_why(
    how: Callable[[FakeCluster], None], reason: str
):
    cluster = queued(**of_two_pods(replicas=1))
    known = cluster.spec
    how(cluster)
    assert [event.why.reason for event in cluster.plan().events] == [reason]  # it was not admitted
    cluster.settle()
    assert cluster.workloads == {} and cluster.pods == {}
    for kind in (ConditionType.READY, ConditionType.SUSPENDED, ConditionType.RUNNING):
        assert cluster.condition(kind).reason == reason
    cluster.spec, cluster.problem, cluster.has_network_policies = known, "", True
    cluster.settle()
    assert list(cluster.workloads) == [cluster.base]
    assert cluster.condition(ConditionType.SUSPENDED).reason == "Queued"


def test_a_suspended_job_that_cannot_begin_asks_for_no_quota_once_its_suspension_is_over():
    cluster = queued(suspend=True, **of_two_pods(replicas=1))
    without_network_policies(cluster)
    change_spec(cluster, suspend=False)
    assert cluster.plan().create == ()
    cluster.settle()
    assert cluster.condition(ConditionType.SUSPENDED).reason == "NetworkPoliciesOff"


def test_no_pod_is_made_on_quota_that_was_taken_back_before_workloads_could_not_be_read():
    cluster = training()
    kueue.evict(workload(cluster))
    cluster.queue_problem = "the list is refused"
    cluster.vanish(cluster.pod("trainer-a1-0"))
    cluster.settle()
    assert (cluster.status.attempt, cluster.names("trainer")) == (2, [])
    assert cluster.condition(ConditionType.RUNNING).reason == "QueueUnavailable"


def test_a_job_without_a_queue_has_no_workload():
    cluster = a_cluster(queueName=None).start()
    assert cluster.workloads == {} and cluster.status.queue is None
    assert "nodeSelector" not in cluster.bodies[cluster.pod("trainer-a1-0")]["spec"]


# Admitted


def test_pods_go_where_the_flavors_and_the_admission_checks_say():
    cluster = queued()
    update = {
        "name": "rollout",
        "labels": {"example.test/provisioned": "yes", labels.JOB: "not-this-one"},
        "annotations": {"cluster-autoscaler.kubernetes.io/consume": "request-1"},
        "nodeSelector": {"example.test/zone": "a"},
    }
    kueue.admit(workload(cluster))
    workload(cluster)["status"]["admissionChecks"] = [
        {"name": "check", "state": "Ready", "podSetUpdates": [update]}
    ]
    cluster.start()
    trainer, engine = (cluster.bodies[cluster.pod(name)] for name in ("trainer-a1-0", "rollout-0-i0"))
    assert trainer["spec"]["nodeSelector"] == {"example.test/gpu": "h100"}
    assert FLAVOR["spec"]["tolerations"][0] in trainer["spec"]["tolerations"]
    assert engine["spec"]["nodeSelector"] == {"example.test/gpu": "h100", "example.test/zone": "a"}
    assert engine["metadata"]["labels"]["example.test/provisioned"] == "yes"
    assert engine["metadata"]["labels"][labels.JOB] == "copy"
    assert "cluster-autoscaler.kubernetes.io/consume" in engine["metadata"]["annotations"]


def test_pods_ready_is_told_and_that_a_pod_is_made_again():
    cluster = training()
    assert kueue.conditions(workload(cluster))["PodsReady"] == ("True", "Started")
    cluster.vanish(cluster.pod("rollout-1-i0"))
    cluster.settle()
    assert kueue.conditions(workload(cluster))["PodsReady"] == ("False", "WaitForRecovery")
    cluster.run_all()
    cluster.settle()
    assert kueue.conditions(workload(cluster))["PodsReady"] == ("True", "Recovered")


@pytest.mark.parametrize(("code", "reason"), [(0, "Succeeded"), (1, "Failed")])
def test_the_end_is_told_once_no_pod_is_left(code: int, reason: str):
    cluster = training(failurePolicy={"maxRestarts": 0})
    cluster.end(cluster.pod("trainer-a1-0"), termination(code))
    cluster.settle()
    assert "Finished" not in kueue.conditions(workload(cluster))
    for name, pod in list(cluster.pods.items()):
        if pod.is_deleting or pod.is_stopping:
            cluster.vanish(name)
    cluster.settle()
    assert kueue.conditions(workload(cluster))["Finished"] == ("True", reason)


def test_a_deleted_job_that_a_finalizer_holds_gives_its_quota_back():
    cluster = training()
    cluster.is_deleting, cluster.finalizers = True, ("example.test/hold",)
    cluster.settle()
    assert list(cluster.workloads) == [cluster.base]  # its pods still end
    cluster.vanish_deleted()
    cluster.settle()
    assert cluster.workloads == {}


# Evicted


def test_an_evicted_job_gives_its_quota_back_after_its_pods_and_goes_on_uncounted():
    cluster = training()
    before = cluster.status
    kueue.evict(workload(cluster), message="Preempted to accommodate a workload of higher priority")
    cluster.settle()
    assert (cluster.running(), cluster.status.phase) == ([], Phase.QUEUED)
    found = cluster.condition(ConditionType.READY)
    assert found.reason == "Suspending" and "queue team: Preempted: Preempted to accommodate" in found.message
    assert kueue.conditions(workload(cluster))["QuotaReserved"] == ("True", "QuotaReserved")
    cluster.vanish_deleted()
    cluster.settle()
    told = kueue.conditions(workload(cluster))
    assert told["QuotaReserved"] == ("False", "Pending")
    assert told["Admitted"] == ("False", "NoReservation")
    assert told["Requeued"] == ("True", "Preempted")
    assert told["Evicted"] == ("True", "Preempted")
    assert told["PodsReady"] == ("False", "WaitForStart")
    assert "admission" not in workload(cluster)["status"]
    kueue.admit(workload(cluster), flavor="gpu")
    cluster.progress = None
    cluster.settle()
    assert cluster.names("trainer") == ["trainer-a2-0"]
    assert (cluster.status.restarts, cluster.status.disruptions) == (before.restarts, before.disruptions)


def test_an_evicted_job_whose_spec_nobody_can_read_keeps_its_position():
    cluster = training()
    kueue.evict(workload(cluster))
    cluster.settle()
    cluster.stored_spec = run(queueName="team", **CLAIM).spec
    cluster.spec, cluster.problem = None, "spec.new is of a newer release"
    cluster.vanish_deleted()
    cluster.settle()
    assert kueue.conditions(workload(cluster))["Requeued"] == ("True", "Preempted")


def test_another_eviction_is_requeued_by_kueue_itself():
    cluster = training()
    kueue.evict(workload(cluster), reason="PodsReadyTimeout")
    cluster.settle()
    cluster.vanish_deleted()
    cluster.settle()
    assert kueue.conditions(workload(cluster))["Requeued"] == ("False", "PodsReadyTimeout")


def test_a_job_whose_spec_nobody_can_read_gives_its_quota_back_and_asks_for_none_meanwhile():
    cluster = training()
    known = cluster.spec
    unreadable(cluster)
    cluster.settle()
    kueue.evict(workload(cluster))
    settle_with_pods(cluster)
    assert cluster.running() == []
    assert kueue.conditions(workload(cluster))["QuotaReserved"] == ("False", "Pending")
    kueue.admit(workload(cluster))
    settle_with_pods(cluster)
    assert cluster.workloads == {} and cluster.running() == []
    assert cluster.condition(ConditionType.READY).reason == "SchemaSkew"
    cluster.spec, cluster.problem, cluster.progress = known, "", None
    cluster.settle()
    kueue.admit(workload(cluster))
    cluster.settle()
    assert cluster.names("trainer") == ["trainer-a2-0"]


@pytest.mark.parametrize("is_suspended", [False, True])
def test_an_evicted_job_with_a_stored_spec_goes_on_once_it_is_admitted_unless_it_is_suspended(
    is_suspended: bool,
):
    cluster = training()
    cluster.stored_spec = run(queueName="team", **CLAIM).spec
    kueue.evict(workload(cluster))
    settle_with_pods(cluster)
    unreadable(cluster)
    cluster.unread_suspend, cluster.progress = is_suspended, None
    kueue.admit(workload(cluster))
    settle_with_pods(cluster)
    assert cluster.names("trainer") == ([] if is_suspended else ["trainer-a2-0"])
    assert list(cluster.workloads) == ([] if is_suspended else [cluster.base])


def without_workload() -> FakeCluster:
    """A job that trains and whose Workload somebody has deleted: it has made another."""
    cluster = training()
    cluster.now += timedelta(minutes=5)
    del cluster.workloads[cluster.base]
    cluster.settle()
    return cluster


def test_a_job_whose_workload_is_gone_goes_on_until_kueue_has_looked_at_the_next_one():
    cluster = without_workload()
    assert cluster.running() == training().running() and list(cluster.workloads) == [cluster.base]
    said = cluster.condition(ConditionType.READY).message
    assert "goes on with the pods that it has: queue team: Kueue has said nothing about Workload" in said
    kueue.keep_waiting(workload(cluster), "insufficient quota")
    cluster.settle()
    assert (cluster.running(), cluster.status.phase) == ([], Phase.QUEUED)


def test_pods_whose_workload_is_gone_go_before_they_come_with_the_quota_of_the_next_one():
    cluster = without_workload()
    kueue.admit(workload(cluster))
    (event,) = cluster.plan().events
    assert event.why.reason == "EvictedFromQueue" and "was made after them" in event.why.message
    cluster.settle()
    assert cluster.running() == []
    cluster.progress = None
    settle_with_pods(cluster)
    assert cluster.names("trainer") == ["trainer-a2-0"] and len(cluster.names("rollout")) == 2
    assert (cluster.status.restarts, cluster.status.disruptions) == (0, 0)


def test_a_suspended_job_gives_its_quota_back_and_asks_again_in_the_queue_that_it_names_then():
    cluster = training()
    change_spec(cluster, suspend=True)
    cluster.settle()
    assert cluster.status.phase is Phase.SUSPENDED
    assert list(cluster.workloads) == [cluster.base]  # its pods still end
    cluster.vanish_deleted()
    change_spec(cluster, queue_name="other")
    cluster.settle()
    assert cluster.workloads == {}
    change_spec(cluster, suspend=False)
    cluster.settle()
    assert workload(cluster)["spec"]["queueName"] == "other" and cluster.running() == []
    kueue.admit(workload(cluster))
    cluster.progress = None
    cluster.settle()
    assert cluster.names("trainer") == ["trainer-a2-0"]


def test_a_queue_that_was_changed_while_nobody_looked_is_the_one_in_which_the_job_goes_on():
    cluster = training()
    change_spec(cluster, suspend=True)
    settle_with_pods(cluster)
    change_spec(cluster, queue_name="other", suspend=False)
    cluster.settle()
    assert workload(cluster)["spec"]["queueName"] == "other" and cluster.running() == []


def test_a_job_in_another_queue_does_not_go_on_with_the_quota_of_the_first():
    cluster = training()
    change_spec(cluster, suspend=True)
    cluster.settle()
    change_spec(cluster, queue_name="other", suspend=False)  # its pods still end
    cluster.settle()
    assert "the Workload in queue team goes first" in cluster.status.suspension.message  # type: ignore[union-attr]
    settle_with_pods(cluster)
    assert workload(cluster)["spec"]["queueName"] == "other" and cluster.running() == []
