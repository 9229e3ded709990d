"""PodGroups come before their pods and go after them, and a scheduler that sleeps is woken."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from grpo_api.contract import labels
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType
from grpo_operator.cluster.kinds import PODS, is_pod_group
from grpo_operator.observe.observed import Refusal
from grpo_operator.permissions import ANY, Permissions

from .fake_cluster import NOW, FakeCluster, spec, termination


def a_cluster(gang: str = "Coscheduling", **changes: Any) -> FakeCluster:
    """A job of two trainer pods and of engines of two pods each."""
    sections = {
        "scheduling": {"gang": gang},
        "engine": {"tensorParallelSize": 2},
        "trainer": {"numNodes": 2},
        "rollout": {"replicas": 2, "nodesPerReplica": 2},
    }
    cluster = FakeCluster(spec(**sections | changes))
    cluster.permissions = Permissions(gangs=(ANY,))
    return cluster


def without_room(gang: str = "Coscheduling", **changes: Any) -> FakeCluster:
    """The same, with trainer pods that wait for nodes."""
    cluster = a_cluster(gang, **changes)
    cluster.has_room = False
    cluster.settle()
    return cluster


def groups(cluster: FakeCluster) -> list[str]:
    """PodGroups by name without the job's prefix."""
    return sorted(name.removeprefix(f"{cluster.base}-") for name in cluster.pod_groups)


def later(cluster: FakeCluster, seconds: float) -> None:
    cluster.now = NOW + timedelta(seconds=seconds)


def woken(cluster: FakeCluster) -> list[str]:
    """PodGroups that the next plan writes anew."""
    made = [c for c in cluster.plan().create if is_pod_group(c.kind) and c.is_correction]
    assert all(labels.WOKEN_AT in child.body["metadata"]["annotations"] for child in made)
    return sorted(child.name.removeprefix(f"{cluster.base}-") for child in made)


def test_a_group_is_made_before_its_pods_and_there_is_none_over_both_roles():
    cluster = a_cluster()
    made = [(child.name.removeprefix(f"{cluster.base}-"), child.kind) for child in cluster.step().create]
    kinds = [kind for _, kind in made if kind == PODS or is_pod_group(kind)]
    assert [is_pod_group(kind) for kind in kinds] == [True, False, False]
    assert groups(cluster) == ["trainer-a1"]
    cluster.settle()
    assert groups(cluster) == ["engine-0-i0", "engine-1-i0", "trainer-a1"]


def test_pods_that_come_alone_have_no_group():
    cluster = a_cluster(trainer={"numNodes": 1}, engine={}, rollout={"replicas": 2}).start()
    assert groups(cluster) == []


def test_a_job_without_a_gang_has_no_groups():
    assert groups(a_cluster(scheduling={}).start()) == []


def test_the_next_attempt_has_a_group_of_its_own_and_the_old_one_goes_with_its_pods():
    cluster = a_cluster().start()
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, reason="OOMKilled"))
    cluster.settle()
    assert cluster.status.attempt == 2
    assert "trainer-a1" in groups(cluster)  # a pod of it still ends
    cluster.vanish_deleted()
    cluster.settle()
    assert groups(cluster) == ["engine-0-i0", "engine-1-i0", "trainer-a2"]


def test_an_engine_that_is_replaced_gets_another_group():
    cluster = a_cluster().start()
    cluster.vanish(cluster.pod("rollout-0-i0-1"))
    cluster.settle()
    cluster.vanish_deleted()
    cluster.settle()
    assert groups(cluster) == ["engine-0-i1", "engine-1-i0", "trainer-a1"]


def test_the_groups_of_a_job_that_has_ended_go_when_its_pods_have():
    cluster = a_cluster().start()
    for index in range(2):
        cluster.end(cluster.pod(f"trainer-a1-{index}"), termination(0))
    cluster.settle()
    assert cluster.condition(ConditionType.COMPLETE).status == "True"
    assert groups(cluster) == ["engine-0-i0", "engine-1-i0"]  # their pods still end
    cluster.vanish_deleted()
    cluster.settle()
    assert groups(cluster) == []


def test_a_group_goes_although_the_operator_no_longer_knows_what_the_job_runs():
    cluster = a_cluster().start()
    for index in range(2):
        cluster.end(cluster.pod(f"trainer-a1-{index}"), termination(0))
    cluster.settle()
    cluster.vanish_deleted()
    cluster.spec, cluster.problem, cluster.stored_spec = None, "of another release", None
    cluster.settle()
    assert groups(cluster) == []


def test_the_groups_of_a_job_that_is_left_alone_go_with_their_pods():
    cluster = a_cluster().start()
    cluster.spec, cluster.problem, cluster.stored_spec = None, "of another release", None
    cluster.vanish(cluster.pod("rollout-0-i0"), cluster.pod("rollout-0-i0-1"))
    cluster.settle()
    assert cluster.condition(ConditionType.READY).reason == "SchemaSkew"
    assert groups(cluster) == ["engine-1-i0", "trainer-a1"]


def test_a_group_that_somebody_deletes_is_made_again_while_its_pods_are_there():
    cluster = a_cluster().start()
    del cluster.pod_groups[cluster.pod("trainer-a1")]
    cluster.settle()
    assert "trainer-a1" in groups(cluster)


def test_a_group_that_is_being_deleted_already_is_left_alone():
    cluster = a_cluster().start()
    name = cluster.pod("engine-1-i0")
    cluster.pod_groups[name] = replace(cluster.pod_groups[name], is_deleting=True)
    cluster.spec = spec(**{**cluster.spec.to_object(), "rollout": {"replicas": 1, "nodesPerReplica": 2}})
    cluster.settle()
    cluster.vanish_deleted()
    assert name not in [deletion.name for deletion in cluster.plan().delete]


def test_a_group_that_waits_is_written_anew_again_and_again_until_it_has_nodes():
    cluster = without_room()
    assert (woken(cluster), cluster.plan().requeue_after) == ([], 15.0)
    later(cluster, 14)
    assert (woken(cluster), cluster.plan().requeue_after) == ([], 1.0)
    later(cluster, 15)
    assert woken(cluster) == ["trainer-a1"]
    cluster.step()
    assert woken(cluster) == []
    later(cluster, 30)
    assert woken(cluster) == ["trainer-a1"]
    cluster.bind(cluster.pod("trainer-a1-0"), cluster.pod("trainer-a1-1"))
    assert woken(cluster) == []


def test_a_group_of_which_one_pod_has_a_node_is_not_woken():
    cluster = without_room()
    cluster.bind(cluster.pod("trainer-a1-0"))
    later(cluster, 60)
    assert woken(cluster) == []


def test_the_group_of_an_engine_is_woken_for_itself():
    cluster = without_room()
    cluster.bind(cluster.pod("trainer-a1-0"), cluster.pod("trainer-a1-1"))
    cluster.settle()
    cluster.bind(cluster.pod("rollout-0-i0"), cluster.pod("rollout-0-i0-1"))
    later(cluster, 60)
    assert woken(cluster) == ["engine-1-i0"]


@pytest.mark.parametrize("gang", ["Volcano", "KAI", "Native"])
def test_a_scheduler_that_looks_by_itself_is_not_woken(gang: str):
    cluster = without_room(gang)
    later(cluster, 600)
    assert woken(cluster) == []


def test_a_clock_that_is_behind_the_api_servers_does_not_wake_without_pause():
    cluster = without_room()
    later(cluster, -3600)
    assert (woken(cluster), cluster.plan().requeue_after) == ([], 15.0)


def test_a_job_whose_group_cannot_be_made_waits_for_days_and_says_why():
    cluster = a_cluster()
    cluster.status = cluster.plan().status
    (name,) = [child.name for child in cluster.plan().create if is_pod_group(child.kind)]
    why = ReasonMessage("GangUnavailable", f"PodGroup {name} cannot be made: install Volcano")
    cluster.refusal = Refusal(name, why)
    for days in range(5):
        cluster.now = NOW + timedelta(days=days)
        cluster.status = cluster.plan().status
    assert cluster.condition(ConditionType.FINISHED).status == "False"
    running = cluster.condition(ConditionType.RUNNING)
    assert (running.reason, running.message) == (why.reason, why.message)
    assert cluster.status.last_failure is not None
    assert (cluster.status.last_failure.reason, cluster.status.last_failure.pod) == ("GangUnavailable", "")
    assert [child.name for child in cluster.plan().create if child.name == name]  # still tried
