"""A job in a queue of Kueue whose engines come and go: each that is added has a Workload of its own."""

from grpo_api.contract import labels
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.cluster.kinds import PODS
from grpo_operator.observe.observed import Refusal

from . import fake_kueue as kueue
from .fake_cluster import report, termination
from .queued_job import (
    a_cluster,
    of_two_pods,
    queued,
    scale,
    settle_with_pods,
    settle_without_room,
    training,
    unreadable,
    workload,
)


def test_an_engine_that_is_added_waits_for_a_quota_of_its_own_and_goes_alone():
    cluster = training()
    scale(cluster, 3)
    settle_with_pods(cluster)
    assert cluster.names("rollout") == ["rollout-0-i0", "rollout-1-i0"]
    [pods] = workload(cluster, extra=2)["spec"]["podSets"]
    assert (pods["name"], pods["count"]) == ("rollout", 1)
    assert "engine 2 is in queue team" in cluster.condition(ConditionType.ROLLOUT_READY).message
    kueue.admit(workload(cluster, extra=2))
    settle_with_pods(cluster)
    assert cluster.names("rollout") == ["rollout-0-i0", "rollout-1-i0", "rollout-2-i0"]
    assert cluster.bodies[cluster.pod("rollout-2-i0")]["spec"]["nodeSelector"] == {"example.test/gpu": "h100"}
    assert kueue.conditions(workload(cluster, extra=2))["PodsReady"] == ("True", "Started")
    kueue.evict(workload(cluster, extra=2))
    cluster.settle()
    assert cluster.names("rollout", is_deleting=True) == ["rollout-2-i0"]
    assert kueue.conditions(workload(cluster, extra=2))["QuotaReserved"] == ("True", "QuotaReserved")
    settle_with_pods(cluster)
    assert kueue.conditions(workload(cluster, extra=2))["Requeued"] == ("True", "Preempted")
    assert (cluster.status.phase, cluster.status.attempt) == (Phase.RUNNING, 1)
    kueue.admit(workload(cluster, extra=2))
    (event,) = cluster.plan().events
    assert event.why.reason == "EngineReplaced"
    assert "Kueue had taken its quota and has given it back: to make room" in event.why.message
    settle_with_pods(cluster)
    assert cluster.names("rollout") == ["rollout-0-i0", "rollout-1-i0", "rollout-2-i1"]
    cluster.vanish(cluster.pod("rollout-2-i1"))
    (event,) = cluster.plan().events
    assert "it was deleted or its node was removed" in event.why.message
    settle_with_pods(cluster)
    scale(cluster, 2)
    settle_with_pods(cluster)
    assert list(cluster.workloads) == [cluster.base]


def test_an_added_engine_gives_its_quota_back_while_its_job_does_without_nodes():
    cluster = training()
    scale(cluster, 3)
    cluster.settle()
    kueue.admit(workload(cluster, extra=2))
    settle_with_pods(cluster)
    cluster.end(cluster.pod("trainer-a1-0"), termination(137))
    cluster.has_room, cluster.progress = False, None
    settle_without_room(cluster)
    kueue.evict(workload(cluster, extra=2))
    cluster.settle()
    assert cluster.status.is_held_back
    assert kueue.conditions(workload(cluster, extra=2))["QuotaReserved"] == ("False", "Pending")


def test_an_evicted_engine_of_a_job_that_is_left_alone_goes_and_gives_its_quota_back():
    cluster = training()
    scale(cluster, 3)
    cluster.settle()
    kueue.admit(workload(cluster, extra=2))
    settle_with_pods(cluster)
    unreadable(cluster)
    cluster.settle()
    kueue.evict(workload(cluster, extra=2))
    cluster.settle()
    assert cluster.names("rollout", is_deleting=True) == ["rollout-2-i0"]
    assert kueue.conditions(workload(cluster, extra=2))["QuotaReserved"] == ("True", "QuotaReserved")
    cluster.vanish_deleted()
    cluster.settle()
    assert kueue.conditions(workload(cluster, extra=2))["QuotaReserved"] == ("False", "Pending")
    assert cluster.names("rollout") == ["rollout-0-i0", "rollout-1-i0"]


def test_an_engine_that_is_added_has_the_priority_that_its_job_has():
    cluster = a_cluster(queueName=None)
    cluster.labels = {labels.QUEUE_NAME: "team", labels.PRIORITY_CLASS: "high"}
    cluster.settle()
    kueue.admit(workload(cluster))
    cluster.start()
    cluster.labels = {labels.QUEUE_NAME: "other", labels.PRIORITY_CLASS: "higher"}
    scale(cluster, 3)
    cluster.settle()
    of_job, of_engine = (item["spec"] for item in (workload(cluster), workload(cluster, extra=2)))
    for field in ("queueName", "priority", "priorityClassRef"):
        assert of_engine[field] == of_job[field]


def test_engines_that_go_are_reclaimable_for_good_and_one_that_comes_back_is_an_extra():
    cluster = training(rollout={"replicas": 3})
    scale(cluster, 1)
    cluster.settle()
    assert "reclaimablePods" not in workload(cluster)["status"]  # the pods still end
    settle_with_pods(cluster)
    assert workload(cluster)["status"]["reclaimablePods"] == [{"name": "rollout", "count": 2}]
    scale(cluster, 2)
    settle_with_pods(cluster)
    assert workload(cluster)["status"]["reclaimablePods"] == [{"name": "rollout", "count": 2}]
    assert cluster.names("rollout") == ["rollout-0-i0"]
    kueue.admit(workload(cluster, extra=1))
    settle_with_pods(cluster)
    assert len(cluster.names("rollout")) == 2


def test_a_workload_of_an_engine_that_is_refused_says_why():
    cluster = training()
    scale(cluster, 3)
    name = f"{cluster.base}-engine-2"
    cluster.refused_pods = {name}
    cluster.refusal = Refusal(name, ReasonMessage("QueueUnavailable", "Kueue does not answer"))
    cluster.settle()
    found = cluster.condition(ConditionType.ROLLOUT_READY)
    assert found.reason == "QueueUnavailable"
    assert "engine 2 is in queue team: Kueue does not answer" in found.message


def test_part_of_the_engines_may_be_admitted_and_the_others_follow():
    cluster = queued(rollout={"replicas": 3, "minReplicas": 1})
    assert workload(cluster)["spec"]["podSets"][1]["minCount"] == 1
    kueue.admit(workload(cluster), rollout=1)
    cluster.start()
    assert cluster.names("rollout") == ["rollout-0-i0"]
    environment = cluster.bodies[cluster.pod("trainer-a1-0")]["spec"]["containers"][0]["env"]
    assert {"name": "GRPO_ROLLOUT_REPLICAS", "value": "1"} in environment
    assert set(cluster.workloads) == {cluster.base, *(f"{cluster.base}-engine-{i}" for i in (1, 2))}


def test_the_quota_of_an_engine_stays_until_all_its_pods_have_ended():
    cluster = training(**of_two_pods(replicas=2))
    scale(cluster, 1)
    cluster.settle()
    cluster.change(cluster.pod("rollout-1-i0-1"), phase="Failed", is_ready=False)
    cluster.settle()
    assert "reclaimablePods" not in workload(cluster)["status"]
    settle_with_pods(cluster)
    assert workload(cluster)["status"]["reclaimablePods"] == [{"name": "rollout", "count": 2}]


def test_an_added_engine_of_a_job_that_has_ended_keeps_its_quota_until_all_its_pods_have_ended():
    cluster = training(**of_two_pods(replicas=1))
    scale(cluster, 2)
    cluster.settle()
    kueue.admit(workload(cluster, extra=1))
    settle_with_pods(cluster)
    cluster.end(cluster.pod("trainer-a1-0"), termination(0))
    cluster.settle()
    cluster.change(cluster.pod("rollout-1-i0-1"), phase="Succeeded", is_ready=False)
    cluster.settle()
    assert len(cluster.workloads) == 2
    cluster.vanish_deleted()
    cluster.settle()
    assert list(cluster.workloads) == [cluster.base]


def test_a_part_of_an_engine_is_given_back():
    cluster = queued(**of_two_pods(replicas=3, minReplicas=1))
    assert workload(cluster)["spec"]["podSets"][1]["minCount"] == 2
    kueue.admit(workload(cluster), rollout=3)
    cluster.start()
    assert cluster.names("rollout") == ["rollout-0-i0", "rollout-0-i0-1"]
    # Kueue subtracts it from all six pods, and takes the smaller of that and what it has admitted
    assert workload(cluster)["status"]["reclaimablePods"] == [{"name": "rollout", "count": 4}]


def test_an_engine_of_a_part_that_was_admitted_gives_its_quota_back():
    cluster = queued(rollout={"replicas": 3, "minReplicas": 1})
    kueue.admit(workload(cluster), rollout=2)
    cluster.start()
    assert "reclaimablePods" not in workload(cluster)["status"]
    cluster.progress = report()
    scale(cluster, 1)
    settle_with_pods(cluster)
    assert cluster.names("rollout") == ["rollout-0-i0"]
    assert workload(cluster)["status"]["reclaimablePods"] == [{"name": "rollout", "count": 2}]


def test_a_job_that_was_scaled_down_and_evicted_has_the_engines_that_are_left_again():
    cluster = training(rollout={"replicas": 3})
    scale(cluster, 1)
    settle_with_pods(cluster)
    kueue.evict(workload(cluster))
    settle_with_pods(cluster)
    kueue.admit(workload(cluster))
    cluster.progress = None
    settle_with_pods(cluster)
    assert workload(cluster)["status"]["admission"]["podSetAssignments"][1]["count"] == 1
    assert cluster.names("trainer") == ["trainer-a2-0"] and len(cluster.names("rollout")) == 1
    assert list(cluster.workloads) == [cluster.base]


def test_a_queued_job_that_is_scaled_asks_anew():
    cluster = queued()
    scale(cluster, 4)
    cluster.settle()
    assert workload(cluster)["spec"]["podSets"][1]["count"] == 4


def test_a_queued_job_that_is_scaled_down_keeps_its_position():
    cluster = queued(rollout={"replicas": 3})
    uid = workload(cluster)["metadata"]["uid"]
    scale(cluster, 2)
    cluster.settle()
    kueue.admit(workload(cluster))
    settle_with_pods(cluster)
    kueue.evict(workload(cluster))
    settle_with_pods(cluster)
    scale(cluster, 1)
    cluster.settle()
    assert workload(cluster)["status"]["reclaimablePods"] == [{"name": "rollout", "count": 2}]
    kueue.admit(workload(cluster))
    settle_with_pods(cluster)
    assert len(cluster.names("rollout")) == 1 and cluster.names("trainer") == ["trainer-a2-0"]
    assert [item["metadata"]["uid"] for item in cluster.workloads.values()] == [uid]


def test_a_workload_that_somebody_has_deactivated_stays_whatever_the_job_asks_for():
    cluster = queued()
    workload(cluster)["spec"]["active"] = False
    scale(cluster, 4)
    cluster.settle()
    assert workload(cluster)["spec"]["active"] is False
    workload(cluster)["spec"]["active"] = True
    cluster.settle()
    assert workload(cluster)["spec"]["podSets"][1]["count"] == 4


def test_extras_go_with_the_job_that_is_evicted():
    cluster = training()
    scale(cluster, 3)
    cluster.settle()
    kueue.admit(workload(cluster, extra=2))
    settle_with_pods(cluster)
    kueue.evict(workload(cluster))
    settle_with_pods(cluster)
    assert list(cluster.workloads) == [cluster.base]
    assert not any(child.kind == PODS for child in cluster.plan().create)
