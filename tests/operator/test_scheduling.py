"""How near to each other the pods of a group are: the affinity of each, and Kueue's annotation."""

from typing import Any

import pytest

from grpo_api.contract import labels
from grpo_operator.children.rollout import rollout_pod
from grpo_operator.children.trainer import trainer_pod

from .fake_cluster import run

ZONE = "topology.kubernetes.io/zone"
TWO_PODS = {"engine": {"tensorParallelSize": 2}, "rollout": {"replicas": 2, "nodesPerReplica": 2}}
OWN_TERM = {"labelSelector": {"matchLabels": {"app": "cache"}}, "topologyKey": "kubernetes.io/hostname"}
OWN = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]
        }
    },
    "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [OWN_TERM]},
}


def trainer(*, attempt: int = 1, index: int = 0, num_nodes: int = 2, **topology: Any) -> dict[str, Any]:
    snapshot = run(
        trainer={"numNodes": num_nodes, "podTemplate": {"spec": {"affinity": OWN}}},
        scheduling={"topology": {"trainer": topology}},
    )
    return trainer_pod(snapshot, attempt=attempt, index=index).body


def engine(*, replica: int = 0, incarnation: int = 0, node: int = 0, **topology: Any) -> dict[str, Any]:
    snapshot = run(**TWO_PODS, scheduling={"topology": {"engine": topology}})
    return rollout_pod(snapshot, replica=replica, incarnation=incarnation, node=node).body


def group_of(pod: dict[str, Any]) -> str:
    group: str = pod["metadata"]["labels"][labels.POD_GROUP]
    return group


def test_a_required_topology_is_an_affinity_to_the_pods_of_the_same_attempt():
    pod = trainer(required=ZONE)
    affinity = pod["spec"]["affinity"]
    assert affinity["nodeAffinity"] == OWN["nodeAffinity"]
    assert affinity["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] == [
        OWN_TERM,
        {"labelSelector": {"matchLabels": {labels.POD_GROUP: group_of(pod)}}, "topologyKey": ZONE},
    ]
    assert pod["metadata"]["annotations"] == {"kueue.x-k8s.io/podset-required-topology": ZONE}
    assert group_of(trainer(index=1, required=ZONE)) == group_of(pod)
    assert group_of(trainer(attempt=2, required=ZONE)) != group_of(pod)


def test_a_preferred_topology_of_an_engine_is_an_affinity_to_its_own_pods():
    pod = engine(preferred="rack")
    assert pod["spec"]["affinity"]["podAffinity"] == {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 100,
                "podAffinityTerm": {
                    "labelSelector": {"matchLabels": {labels.POD_GROUP: group_of(pod)}},
                    "topologyKey": "rack",
                },
            }
        ]
    }
    assert pod["metadata"]["annotations"] == {"kueue.x-k8s.io/podset-preferred-topology": "rack"}
    assert group_of(engine(node=1, preferred="rack")) == group_of(pod)
    others = [engine(replica=1, preferred="rack"), engine(incarnation=1, preferred="rack")]
    assert group_of(pod) not in [group_of(other) for other in others]


def test_a_topology_does_nothing_to_a_pod_that_is_alone():
    pod = trainer(num_nodes=1, required=ZONE)
    assert pod["spec"]["affinity"] == OWN
    assert "annotations" not in pod["metadata"] and labels.POD_GROUP not in pod["metadata"]["labels"]


@pytest.mark.parametrize("make", [trainer, engine])
def test_a_topology_alone_changes_neither_the_scheduler_nor_makes_a_group_of_one(make: Any):
    assert "schedulerName" not in make(required=ZONE)["spec"]
