"""A job in a queue of Kueue on a real API server with the real CRD of Workloads, and with the rights of the
chart. What Kueue decides is written by the test (`fake_kueue`)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import ApiException

from grpo_cluster.binaries import dependency_folder
from grpo_cluster.versions import KUEUE
from grpo_operator.cluster.kinds import RESOURCE_FLAVORS, WORKLOAD_PRIORITY_CLASSES, WORKLOADS

from ..operator import fake_kueue
from .api_server import Kubectl
from .fake_kubelet import FakeKubelet
from .operator_harness import (
    Namespace,
    OperatorProcess,
    killed_at_the_end,
    wait_for_pods,
    wait_until,
)
from .test_operator_gangs import policies_of_the_chart
from .test_operator_rights import operator_of_the_chart

pytestmark = pytest.mark.apiserver

CHART = ("--set", "kueue.enabled=true")
OF_WORKLOADS = (WORKLOADS.group, WORKLOADS.version)
FLAVOR = {"nodeLabels": {"example.test/gpu": "h100"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}


def install_kueue(kubectl: Kubectl) -> None:
    """The CRDs of Kueue that the operator uses, without the conversion of older versions, and one object of
    each kind that is of no namespace."""
    folder = dependency_folder(KUEUE, "sigs.k8s.io/kueue") / "config" / "components" / "crd" / "bases"
    for kind in (WORKLOADS, RESOURCE_FLAVORS, WORKLOAD_PRIORITY_CLASSES):
        crd = yaml.safe_load((folder / f"{kind.group}_{kind.plural}.yaml").read_text())
        crd["spec"]["versions"] = [each for each in crd["spec"]["versions"] if each["name"] == kind.version]
        # Kueue's API has it, and a group of Kubernetes needs it
        crd["metadata"].setdefault("annotations", {})["api-approved.kubernetes.io"] = "unapproved, for a test"
        kubectl.run("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump(crd))
        waited = ("wait", "--for=condition=Established", f"crd/{kind.plural}.{kind.group}")
        wait_until(  # of one that is new, kubectl finds no conditions
            f"the CRD of {kind.name} is established",
            lambda waited=waited: kubectl.run(*waited, check=False),
            poll_seconds=0.3,
        )
    for kind, name, content in (
        (RESOURCE_FLAVORS, "gpu", {"spec": FLAVOR}),
        (WORKLOAD_PRIORITY_CLASSES, "high", {"value": 1000}),
    ):
        item = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"name": name}, **content}
        wait_until(
            f"{kind.name}s are served",
            lambda item=item: kubectl.run("apply", "-f", "-", stdin=yaml.safe_dump(item), check=False),
            poll_seconds=0.3,
        )


class Workloads:
    """The Workloads of a namespace, and what Kueue writes into them."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    def all(self) -> dict[str, Any]:
        """By name, without the part of the name that is the job's. None while the API server does not serve a
        CRD that was just installed."""
        where = (*OF_WORKLOADS, self._namespace.name, WORKLOADS.plural)
        try:
            items = self._namespace.objects.list_namespaced_custom_object(*where)["items"]
        except ApiException as error:
            if error.status != 404:
                raise
            return {}
        return {"".join(item["metadata"]["name"].split("-", 2)[2:]): item for item in items}

    def wait_for(self, name: str = "") -> dict[str, Any]:
        found: dict[str, Any] = wait_until(f"Workload {name or 'of the job'}", lambda: self.all().get(name))
        return found

    def conditions(self, name: str = "") -> dict[str, tuple[str, str]]:
        return fake_kueue.conditions(self.all()[name])

    def decide(self, how: Callable[..., None], *arguments: Any, name: str = "", **more: Any) -> None:
        """Write a decision of Kueue, again where the operator wrote in between."""

        def written() -> bool:
            item = self.wait_for(name)
            version = item["metadata"]["resourceVersion"]
            how(item, *arguments, **more)
            item["metadata"]["resourceVersion"] = version
            try:
                self._namespace.objects.replace_namespaced_custom_object_status(
                    *OF_WORKLOADS, self._namespace.name, WORKLOADS.plural, item["metadata"]["name"], item
                )
            except ApiException as error:
                if error.status != 409:
                    raise
                return False
            return True

        wait_until("the decision is written", written)


@pytest.fixture
def workloads(namespace: Namespace) -> Workloads:
    return Workloads(namespace)


@pytest.fixture(scope="module")
def installed(kubectl: Kubectl) -> None:
    """The cluster has Kueue's CRDs, for all tests that follow."""
    install_kueue(kubectl)


@contextmanager
def running_operator(
    kubectl: Kubectl, namespace: Namespace, folder: Path, *options: str
) -> Iterator[OperatorProcess]:
    """The operator with the rights of its chart, where Kueue is switched on. It lists nothing for 90 s: what
    it learns of Workloads it has from its watch."""
    operator = operator_of_the_chart(kubectl, namespace, folder, *CHART)
    with killed_at_the_end(operator), policies_of_the_chart(kubectl, namespace, *CHART):
        operator.start("--kueue=true", *options)
        yield operator


def reason_of(namespace: Namespace, *, is_reason: str) -> str:
    """What the job says once it says it for this reason."""
    found = wait_until(
        f"it waits because of {is_reason}",
        lambda: (said := namespace.condition("Ready")).get("reason") == is_reason and said,
    )
    return str(found["message"])


def test_a_job_waits_for_kueue_and_is_queued_once_it_is_installed(
    namespace: Namespace, kubectl: Kubectl, tmp_path: Path, workloads: Workloads
):
    with running_operator(kubectl, namespace, tmp_path) as operator:
        namespace.apply_job(queueName="team")
        said = reason_of(namespace, is_reason="QueueUnavailable")
        assert "come with Kueue: install that" in said and "looks again every 10 s" in said
        about = "involvedObject.kind=GRPOJob,type=Warning"
        list_events = namespace.core.list_namespaced_event
        (event,) = wait_until(
            "an Event says it", lambda: list_events(namespace.name, field_selector=about).items
        )
        assert event.reason == "QueueUnavailable" and event.message.startswith("queue team: ")
        assert namespace.pods("trainer") == []
        install_kueue(kubectl)
        assert workloads.wait_for()["spec"]["queueName"] == "team"
        assert operator.stop() == 0


@pytest.mark.usefixtures("installed")
def test_a_job_is_admitted_evicted_admitted_again_and_finished_with_the_rights_of_the_chart(
    namespace: Namespace, kubectl: Kubectl, kubelet: FakeKubelet, tmp_path: Path, workloads: Workloads
):
    with running_operator(kubectl, namespace, tmp_path) as operator:
        job = namespace.apply_job(queueName="team", scheduling={"priorityClass": "high"})
        made = workloads.wait_for()
        assert made["spec"]["priority"] == 1000
        assert [owner["uid"] for owner in made["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
        workloads.decide(fake_kueue.keep_waiting, "insufficient quota for nvidia.com/gpu in flavor gpu")
        wait_until(
            "the job says what Kueue says",
            lambda: "insufficient quota" in namespace.condition("Suspended").get("message", ""),
        )
        assert namespace.pods("trainer") == []
        workloads.decide(fake_kueue.admit)
        (trainer,) = wait_for_pods(namespace, "trainer", 1)
        assert trainer.spec.node_selector == FLAVOR["nodeLabels"]
        assert "gpu" in [toleration.key for toleration in trainer.spec.tolerations]
        kubelet.run(trainer)
        for pod in wait_for_pods(namespace, "rollout", 2):
            kubelet.run(pod)
        wait_until(
            "its pods are ready", lambda: workloads.conditions().get("PodsReady") == ("True", "Started")
        )

        workloads.decide(fake_kueue.evict, message="Preempted to accommodate a workload")
        wait_until("it gives its quota back", lambda: "admission" not in workloads.all()[""]["status"])
        told = workloads.conditions()
        assert told["QuotaReserved"] == ("False", "Pending") and told["Requeued"] == ("True", "Preempted")
        assert namespace.pods("trainer") == [] and namespace.pods("rollout") == []
        workloads.decide(fake_kueue.admit)
        (trainer,) = wait_for_pods(namespace, "trainer", 1, attempt=2)
        assert namespace.status()["restarts"] == namespace.status()["disruptions"] == 0
        kubelet.run(trainer)
        wait_for_pods(namespace, "rollout", 2)
        kubelet.end(trainer, exit_code=0)
        wait_until("it is finished", lambda: workloads.conditions().get("Finished") == ("True", "Succeeded"))
        assert "orbidden" not in operator.log() and "is denied" not in operator.log()
        assert operator.stop() == 0


@pytest.mark.usefixtures("installed")
def test_an_engine_that_is_added_is_admitted_and_preempted_alone(
    namespace: Namespace, kubectl: Kubectl, kubelet: FakeKubelet, tmp_path: Path, workloads: Workloads
):
    with running_operator(kubectl, namespace, tmp_path):
        namespace.apply_job(queueName="team")
        workloads.decide(fake_kueue.admit)
        (trainer,) = wait_for_pods(namespace, "trainer", 1)
        kubelet.run(trainer)
        first = wait_for_pods(namespace, "rollout", 2)
        namespace.patch_job({"spec": {"rollout": {"replicas": 3}}})
        workloads.decide(fake_kueue.admit, name="engine-2")
        assert len(wait_for_pods(namespace, "rollout", 3)) == 3
        workloads.decide(fake_kueue.evict, name="engine-2")
        kept = wait_for_pods(namespace, "rollout", 2)
        assert [pod.metadata.uid for pod in kept] == [pod.metadata.uid for pod in first]
        wait_until(
            "the engine waits in the queue",
            lambda: workloads.conditions("engine-2").get("Requeued") == ("True", "Preempted"),
        )
        namespace.patch_job({"spec": {"rollout": {"replicas": 1}}})
        wait_until("its Workload is gone", lambda: list(workloads.all()) == [""])
        wait_until(
            "the other engine's quota is given back",
            lambda: workloads.all()[""]["status"].get("reclaimablePods") == [{"name": "rollout", "count": 1}],
        )
        assert [pod.metadata.uid for pod in namespace.pods("trainer")] == [trainer.metadata.uid]


@pytest.mark.usefixtures("installed")
def test_a_right_that_is_missing_is_named(
    namespace: Namespace, kubectl: Kubectl, tmp_path: Path, workloads: Workloads
):
    operator = operator_of_the_chart(kubectl, namespace, tmp_path)
    with killed_at_the_end(operator):
        operator.start("--kueue=true", "--resync-seconds=1")
        namespace.apply_job(queueName="team")
        said = reason_of(namespace, is_reason="QueueUnavailable")
        assert "no right on workloads of kueue.x-k8s.io" in said and "`kueue.enabled` of the chart" in said
        assert workloads.all() == {}


@pytest.mark.usefixtures("installed")
def test_an_operator_of_one_namespace_needs_its_clusterrole_too(
    namespace: Namespace, kubectl: Kubectl, tmp_path: Path, workloads: Workloads
):
    with running_operator(kubectl, namespace, tmp_path):
        kubectl.run("delete", "clusterrolebinding", f"{namespace.name}:grpo-operator-kueue")
        namespace.apply_job(queueName="team")
        workloads.decide(fake_kueue.admit)
        said = reason_of(namespace, is_reason="QueueUnavailable")
        assert "may not read ResourceFlavor gpu" in said and "kueue.enabled" in said
        assert namespace.pods("trainer") == []


def pods_of(namespace: Namespace) -> list[tuple[str, Any]]:
    """(uid, when it was deleted) of each pod of the job."""
    found = (pod.metadata for role in ("trainer", "rollout") for pod in namespace.pods(role))
    return [(each.uid, each.deletion_timestamp) for each in found]


@pytest.mark.usefixtures("installed")
def test_a_job_that_trains_goes_on_when_kueue_is_removed_and_is_queued_once_kueue_is_back(
    namespace: Namespace, kubectl: Kubectl, kubelet: FakeKubelet, tmp_path: Path, workloads: Workloads
):
    with running_operator(kubectl, namespace, tmp_path) as operator:
        namespace.apply_job(queueName="team")
        workloads.decide(fake_kueue.admit)
        (trainer,) = wait_for_pods(namespace, "trainer", 1)
        kubelet.run(trainer)
        for pod in wait_for_pods(namespace, "rollout", 2):
            kubelet.run(pod)
        wait_until("its pods are ready", lambda: "PodsReady" in workloads.conditions())
        before = pods_of(namespace)
        kubectl.run("delete", "crd", f"{WORKLOADS.plural}.{WORKLOADS.group}")
        wait_until(
            "the job says that there is no Kueue",
            lambda: "looks again every" in namespace.condition("Ready").get("message", ""),
        )
        said = namespace.condition("Ready")["message"]
        assert "the job goes on with the pods that it has" in said
        assert "set spec.suspend to true, remove spec.queueName" in said
        assert pods_of(namespace) == before

        install_kueue(kubectl)
        workloads.wait_for()
        wait_until(
            "the job waits for a word of Kueue",
            lambda: "Kueue has said nothing" in namespace.condition("Ready").get("message", ""),
        )
        assert pods_of(namespace) == before
        workloads.decide(fake_kueue.admit)
        wait_for_pods(namespace, "trainer", 1, attempt=2)
        assert namespace.status()["restarts"] == namespace.status()["disruptions"] == 0
        assert operator.stop() == 0
