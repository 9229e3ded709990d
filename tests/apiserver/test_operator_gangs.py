"""PodGroups on a real API server: made before their pods, woken, and gone after them; and what a job says
where the cluster does not have them or the operator may not make them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_api.contract.labels import WOKEN_AT
from grpo_api.v1alpha1.spec import Gang
from grpo_operator.children.gangs import GANG_SCHEDULERS
from grpo_operator.cluster.kinds import Kind

from .api_server import Kubectl
from .fake_kubelet import FakeKubelet
from .operator_harness import (
    Namespace,
    OperatorProcess,
    killed_at_the_end,
    wait_for_pods,
    wait_until,
)
from .test_admission_policy import POLICIES
from .test_operator_rights import operator_of_the_chart, rendered_chart

pytestmark = pytest.mark.apiserver

COSCHEDULING = GANG_SCHEDULERS[Gang.COSCHEDULING].kind
TWO_NODES = {"numNodes": 2, "processesPerNode": 1}
TWO_PODS = {
    "engine": {"tensorParallelSize": 2, "maxModelLen": 64},
    "rollout": {"replicas": 1, "nodesPerReplica": 2},
}


def install(kubectl: Kubectl, kind: Kind) -> None:
    """The CRD of a kind, with any content."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": kind.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {"plural": kind.plural, "singular": kind.name.lower(), "kind": kind.name},
            "versions": [version],
        },
    }
    kubectl.run("apply", "-f", "-", stdin=yaml.safe_dump(crd))
    kubectl.run("wait", "--for=condition=Established", "--timeout=30s", f"crd/{kind.plural}.{kind.group}")


@contextmanager
def policies_of_the_chart(kubectl: Kubectl, namespace: Namespace, *arguments: str) -> Iterator[None]:
    """The operator's account may write no more than the chart's admission policy lets it."""
    made = [item for item in rendered_chart(namespace.name, *arguments) if item["kind"] in POLICIES]
    policies = yaml.safe_dump_all(made)
    kubectl.run("apply", "-f", "-", stdin=policies)
    yield
    kubectl.run("delete", "-f", "-", stdin=policies)


@pytest.fixture
def groups(namespace: Namespace) -> Callable[[Kind], dict[str, Any]]:
    """The PodGroups of the namespace by name, without the part of the name that is the job's."""

    def found(kind: Kind) -> dict[str, Any]:
        items = namespace.objects.list_namespaced_custom_object(
            kind.group, kind.version, namespace.name, kind.plural
        )["items"]
        return {item["metadata"]["name"].split("-", 2)[2]: item for item in items}

    return found


def test_a_job_whose_gang_scheduler_is_not_installed_waits_and_goes_on_once_it_is(
    namespace: Namespace, operator: OperatorProcess, kubectl: Kubectl, groups: Any
):
    volcano = GANG_SCHEDULERS[Gang.VOLCANO].kind
    operator.start("--allow-gang=Volcano", "--resync-seconds=1")
    job = namespace.apply_job(scheduling={"gang": "Volcano"}, trainer=TWO_NODES)
    running = wait_until(
        "it is said what is missing",
        lambda: (found := namespace.condition("Running")).get("reason") == "GangUnavailable" and found,
    )
    assert "come with Volcano: install that" in running["message"]
    assert namespace.pods("trainer") == []
    install(kubectl, volcano)
    pods = wait_for_pods(namespace, "trainer", 2)
    (name, group), *others = groups(volcano).items()
    assert (name, others) == ("trainer-a1", [])
    assert group["spec"]["minMember"] == 2
    assert [owner["uid"] for owner in group["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
    for pod in pods:
        assert pod.metadata.annotations["scheduling.k8s.io/group-name"] == group["metadata"]["name"]
        assert pod.spec.scheduler_name == "volcano"


def test_groups_come_before_their_pods_and_go_after_them_with_the_rights_of_the_chart(
    namespace: Namespace, kubectl: Kubectl, kubelet: FakeKubelet, groups: Any, tmp_path: Path
):
    install(kubectl, COSCHEDULING)
    chart = ("--set", "gangs={Coscheduling}")
    operator = operator_of_the_chart(kubectl, namespace, tmp_path, *chart)
    with killed_at_the_end(operator), policies_of_the_chart(kubectl, namespace, *chart):
        operator.start("--allow-gang=Coscheduling", "--resync-seconds=1")
        namespace.apply_job(scheduling={"gang": "Coscheduling"}, trainer=TWO_NODES, **TWO_PODS)
        first, second = wait_for_pods(namespace, "trainer", 2)
        (group,) = groups(COSCHEDULING).values()
        made_at = f"{first.metadata.creation_timestamp:%Y-%m-%dT%H:%M:%SZ}"
        assert group["metadata"]["creationTimestamp"] <= made_at
        for pod in (first, second):
            assert pod.metadata.labels["scheduling.x-k8s.io/pod-group"] == group["metadata"]["name"]
        wait_until(
            "the group that waits is written anew",
            lambda: WOKEN_AT in groups(COSCHEDULING)["trainer-a1"]["metadata"].get("annotations", {}),
        )
        assert groups(COSCHEDULING)["trainer-a1"]["spec"] == group["spec"]

        for pod in (first, second):
            kubelet.run(pod)
        for pod in wait_for_pods(namespace, "rollout", 2):
            kubelet.run(pod)
        assert groups(COSCHEDULING).keys() == {"trainer-a1", "engine-0-i0"}
        operator.kill()
        kubelet.end(first, exit_code=1, message="boom")
        operator.start("--allow-gang=Coscheduling", "--resync-seconds=1")
        for pod in wait_for_pods(namespace, "trainer", 2, attempt=2):
            kubelet.run(pod)
        wait_until(
            "the group of the first attempt is gone",
            lambda: groups(COSCHEDULING).keys() == {"trainer-a2", "engine-0-i0"},
        )
        for pod in namespace.pods("trainer", attempt=2):
            kubelet.end(pod, exit_code=0)
        wait_until("it is complete", lambda: namespace.condition("Complete").get("status") == "True")
        wait_until("no group is left", lambda: not groups(COSCHEDULING))
        assert "orbidden" not in operator.log() and "is denied" not in operator.log()
        assert operator.stop() == 0


def test_a_job_whose_groups_the_operator_may_not_make_names_the_value_of_the_chart(
    namespace: Namespace, kubectl: Kubectl, tmp_path: Path
):
    install(kubectl, COSCHEDULING)
    operator = operator_of_the_chart(kubectl, namespace, tmp_path)
    with killed_at_the_end(operator):
        operator.start("--allow-gang=Coscheduling")
        namespace.apply_job(scheduling={"gang": "Coscheduling"}, trainer=TWO_NODES)
        running = wait_until(
            "it is said what is missing",
            lambda: (found := namespace.condition("Running")).get("reason") == "GangUnavailable" and found,
        )
        assert "`gangs` of the chart" in running["message"]
        assert namespace.pods("trainer") == []
