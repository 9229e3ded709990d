"""The headless Services of a job."""

import pytest

from grpo_operator.cluster.kinds import SERVICES

from .fake_cluster import FakeCluster, spec

OTHER = {
    "publishNotReadyAddresses": False,
    "selector": {"app": "another"},
    "ports": [{"name": "http", "port": 1, "targetPort": 1, "protocol": "TCP"}],
}


def of_two_nodes() -> FakeCluster:
    """A job that runs, with both Services."""
    return FakeCluster(spec(trainer={"numNodes": 2})).start()


def roles(cluster: FakeCluster) -> list[str]:
    return sorted(name.removeprefix(f"{cluster.base}-") for name in cluster.services)


def test_a_trainer_has_a_service_only_where_its_pods_have_to_find_each_other():
    assert roles(FakeCluster().start()) == ["rollout"]
    assert roles(of_two_nodes()) == ["rollout", "trainer"]


def test_services_that_are_right_are_left_alone_whatever_the_server_added():
    cluster = of_two_nodes()
    for service in cluster.services.values():
        service["spec"] |= {"sessionAffinity": "None", "ipFamilies": ["IPv4"]}
    assert cluster.plan().create == ()


@pytest.mark.parametrize("field", sorted(OTHER))
def test_a_service_that_was_changed_is_put_right_and_not_made_anew(field: str):
    cluster = of_two_nodes()
    name = next(iter(cluster.services))
    wanted = cluster.services[name]
    cluster.services[name] = wanted | {"spec": wanted["spec"] | {field: OTHER[field]}}
    (child,) = cluster.plan().create
    assert (child.kind, child.name, child.is_correction) == (SERVICES, name, True)
    assert child.body == wanted


def test_a_service_that_is_gone_is_made_again():
    for role in ("trainer", "rollout"):
        cluster = of_two_nodes()
        name = cluster.pod(role)
        wanted = cluster.services.pop(name)
        (child,) = cluster.plan().create
        assert (child.name, child.is_correction, child.body) == (name, False, wanted)


def test_each_service_selects_the_pods_of_its_role_and_no_others():
    cluster = of_two_nodes()
    labels = {name: pod["metadata"]["labels"] for name, pod in cluster.bodies.items()}
    selected = {
        service: [name for name, own in labels.items() if spec["spec"]["selector"].items() <= own.items()]
        for service, spec in cluster.services.items()
    }
    assert {service.rpartition("-")[2]: len(names) for service, names in selected.items()} == {
        "trainer": 2,
        "rollout": 2,
    }
    for service, names in selected.items():
        assert all(f"-{service.rpartition('-')[2]}-" in name for name in names)
