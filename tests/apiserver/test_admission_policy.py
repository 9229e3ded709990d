"""What the operator's account may write under the chart's ValidatingAdmissionPolicy, and what a thief of its
token may not."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config
from kubernetes.client import ApiException

from .api_server import Kubectl
from .fake_kubelet import FakeKubelet, running_job
from .operator_harness import (
    GROUP,
    Namespace,
    OperatorProcess,
    killed_at_the_end,
    wait_for_pods,
    wait_until,
)
from .test_operator_rights import SCOPES, operator_of_the_chart, rendered_chart

pytestmark = pytest.mark.apiserver

POLICIES = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
SAYS = {
    "owner": "only what belongs to a GRPOJob of the same namespace",
    "label": "has the label app.kubernetes.io/managed-by=grpo-operator",
    "node": "a pod of a GRPOJob has no namespace of its node",
    "account": "no ServiceAccount that podTemplates.serviceAccounts does not name",
    "volume": "has volumes of ConfigMaps, Secrets, claims and CSI drivers",
    "restricted": "is one of Pod Security restricted",
    "opaque": "makes Secrets of type Opaque only",
    "system": "nothing to do in a namespace of the system",
    "job": "deletes only jobs that have ended and have a ttlSeconds field",
}


@pytest.fixture
def operator(namespace: Namespace, kubectl: Kubectl, tmp_path: Path) -> Iterator[OperatorProcess]:
    """One of the whole cluster, with the rights of the chart, under its policy."""
    made = operator_of_the_chart(kubectl, namespace, tmp_path, *SCOPES["cluster-wide"])
    documents = rendered_chart(namespace.name, *SCOPES["cluster-wide"])
    policies = yaml.safe_dump_all(item for item in documents if item["kind"] in POLICIES)
    kubectl.run("apply", "-f", "-", stdin=policies)
    with killed_at_the_end(made):
        yield made
    kubectl.run("delete", "-f", "-", stdin=policies)


@pytest.fixture
def thief(operator: OperatorProcess, namespace: Namespace, tmp_path: Path) -> client.CoreV1Api:
    """Has the operator's token. Ready once the policy is in force."""
    core = client.CoreV1Api(config.new_client_from_config(str(tmp_path / "kubeconfig")))
    nobodys = {"metadata": {"name": "x"}}
    wait_until(
        "the policy is in force",
        lambda: SAYS["owner"] in refusal(core.create_namespaced_config_map, namespace.name, nobodys),
    )
    return core


def refusal(write: Any, namespace: str, body: dict[str, Any]) -> str:
    """What the API server says to a write that is tried; empty when it is allowed."""
    try:
        write(namespace, body, dry_run="All")
    except ApiException as error:
        return str(error.body)
    return ""


def test_a_job_runs_under_the_policy_and_a_thief_makes_nothing_but_pods_of_jobs(
    namespace: Namespace, operator: OperatorProcess, thief: client.CoreV1Api, kubelet: FakeKubelet
):
    operator.start(is_everywhere=True)
    (trainer,) = running_job(namespace, kubelet)
    kubelet.end(trainer, exit_code=1, message="boom")
    wait_for_pods(namespace, "trainer", 1, attempt=2)
    namespace.core.patch_namespaced_service(
        name := namespace.core.list_namespaced_service(namespace.name).items[0].metadata.name,
        namespace.name,
        {"metadata": {"labels": {"app.kubernetes.io/managed-by": None}}},
    )
    wait_until(
        "the Service has its label again",
        lambda: (
            "app.kubernetes.io/managed-by"
            in namespace.core.read_namespaced_service(name, namespace.name).metadata.labels
        ),
    )
    assert "is denied" not in operator.log() and "ValidatingAdmissionPolicy" not in operator.log()
    operator.kill()

    # which would refuse most of it too
    unenforced = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": None}}}
    namespace.core.patch_namespace(namespace.name, unenforced)
    namespace.core.create_namespaced_service_account(namespace.name, {"metadata": {"name": "builder"}})
    pod = client.ApiClient().sanitize_for_serialization(namespace.pods("rollout")[0])
    meta = {key: pod["metadata"][key] for key in ("labels", "ownerReferences")} | {"name": "stolen"}
    good = {"metadata": meta, "spec": pod["spec"] | {"nodeName": None, "hostname": None}}
    assert refusal(thief.create_namespaced_pod, namespace.name, good) == ""
    for says, change in (
        ("owner", {"metadata": {"ownerReferences": []}}),
        ("label", {"metadata": {"labels": {}}}),
        ("node", {"spec": {"hostPID": True}}),
        ("node", {"spec": {"hostNetwork": True}}),
        ("account", {"spec": {"serviceAccountName": "builder"}}),
        ("account", {"spec": {"automountServiceAccountToken": True}}),
        ("volume", {"spec": {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]}}),
        ("restricted", {"spec": {"securityContext": {}}}),
    ):
        body = deepcopy(good)
        for part, fields in change.items():
            body[part] |= fields
        if says == "volume":
            body["spec"]["volumes"] += good["spec"]["volumes"]
        assert SAYS[says] in refusal(thief.create_namespaced_pod, namespace.name, body), (says, change)
    container = deepcopy(good)
    container["spec"]["containers"][0]["securityContext"] |= {
        "privileged": True,
        "allowPrivilegeEscalation": True,
    }
    assert SAYS["restricted"] in refusal(thief.create_namespaced_pod, namespace.name, container)

    secret = {"metadata": meta, "type": "kubernetes.io/service-account-token"}
    secret["metadata"] |= {"annotations": {"kubernetes.io/service-account.name": "default"}}
    assert SAYS["opaque"] in refusal(thief.create_namespaced_secret, namespace.name, secret)
    assert SAYS["system"] in refusal(thief.create_namespaced_config_map, "kube-system", {"metadata": meta})
    engine = namespace.pods("rollout")[0].metadata.name
    image = {"containers": [{"name": good["spec"]["containers"][0]["name"], "image": "evil:1"}]}
    for change in (
        {"spec": image},
        {"metadata": {"labels": {"app": "database"}}},
        {"metadata": {"annotations": {"iam.example/role": "admin"}}},
    ):
        with pytest.raises(ApiException, match="changes neither images nor labels nor annotations"):
            thief.patch_namespaced_pod(engine, namespace.name, change, dry_run="All")
    thief.patch_namespaced_pod(engine, namespace.name, {"spec": {"activeDeadlineSeconds": 1}}, dry_run="All")
    others = namespace.core.create_namespaced_pod(
        namespace.name, good | {"metadata": {"name": "others", "labels": meta["labels"]}}
    )
    mine = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "grpo-operator"}}}
    with pytest.raises(ApiException, match=r"changes neither images nor labels nor annotations|only what"):
        thief.patch_namespaced_pod(others.metadata.name, namespace.name, mine, dry_run="All")
    with pytest.raises(ApiException, match="only what belongs to a GRPOJob"):
        thief.delete_namespaced_pod(others.metadata.name, namespace.name)
    jobs = client.CustomObjectsApi(thief.api_client)

    def delete_job() -> None:
        jobs.delete_namespaced_custom_object(*GROUP, namespace.name, "grpojobs", "copy", dry_run="All")

    with pytest.raises(ApiException, match=SAYS["job"]):
        delete_job()
    namespace.patch_job({"spec": {"ttlSecondsAfterFinished": 60}})
    with pytest.raises(ApiException, match=SAYS["job"]):
        delete_job()
    namespace.patch_status({"completionTime": "2026-11-28T12:00:00Z"})
    delete_job()
