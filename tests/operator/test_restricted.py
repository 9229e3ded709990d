"""What a pod may not have, whatever it was made from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_api.v1alpha1.job import parse_job
from grpo_operator.apply.children import apply_children
from grpo_operator.children.child import Child
from grpo_operator.children.restricted import problems_of_pod
from grpo_operator.children.rollout import rollout_pod
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.children.trainer import trainer_pod
from grpo_operator.cluster.kinds import PODS, KubeObject
from grpo_operator.observe.cache import Cache
from grpo_operator.observe.from_cache import job_and_pods

from .controlled_job import KEY
from .fake_api_server import FakeApiServer
from .fake_cluster import IMAGE, UID, run

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
Alter = Callable[[KubeObject], Any]


def pods_of(snapshot: JobSnapshot) -> list[Child]:
    pods = [trainer_pod(snapshot, attempt=1, index=0)]
    return [*pods, rollout_pod(snapshot, replica=0, incarnation=0)] if snapshot.has_rollout else pods


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_the_pods_of_every_example_may_be_made(path: Path) -> None:
    jobs = [item for item in yaml.safe_load_all(path.read_text()) if item and item["kind"] == "GRPOJob"]
    assert jobs
    for item in jobs:
        job = parse_job(item | {"metadata": item["metadata"] | {"uid": UID, "namespace": "default"}})
        snapshot = JobSnapshot.take(namespace="default", job="x", uid=UID, spec=job.spec, image=IMAGE)
        for pod in pods_of(snapshot):
            assert problems_of_pod(pod.body, allowed=pod.allowed) == []


def test_a_job_has_the_account_and_the_network_that_it_was_allowed() -> None:
    template = {"spec": {"serviceAccountName": "reader", "hostNetwork": True}}
    trainer, rollout = pods_of(run(trainer={"podTemplate": template}))
    assert problems_of_pod(trainer.body, allowed=trainer.allowed) == []
    # those of the trainer are not those of the engines
    assert problems_of_pod(trainer.body, allowed=rollout.allowed) == [
        "spec.hostNetwork",
        "spec.serviceAccountName reader",
    ]


def of_container(**more: Any) -> Alter:
    return lambda pod: pod["spec"]["containers"][0].update(more)


def of_context(**more: Any) -> Alter:
    return lambda pod: pod["spec"]["containers"][0]["securityContext"].update(more)


def of_pod(**more: Any) -> Alter:
    return lambda pod: pod["spec"].update(more)


def of_pod_context(**more: Any) -> Alter:
    return lambda pod: pod["spec"]["securityContext"].update(more)


def of_metadata(**annotations: str) -> Alter:
    return lambda pod: pod["metadata"].update(annotations=annotations)


def more_volumes(volume: KubeObject) -> Alter:
    return lambda pod: pod["spec"]["volumes"].append({"name": "more", **volume})


REFUSED: dict[str, tuple[Alter, str]] = {
    "network of the node": (of_pod(hostNetwork=True), "spec.hostNetwork"),
    "processes of the node": (of_pod(hostPID=True), "spec.hostPID"),
    "ipc of the node": (of_pod(hostIPC=True), "spec.hostIPC"),
    "one process namespace": (of_pod(shareProcessNamespace=True), "spec.shareProcessNamespace"),
    "account": (of_pod(serviceAccountName="admin"), "spec.serviceAccountName admin"),
    "account by its old name": (of_pod(serviceAccount="admin"), "spec.serviceAccountName admin"),
    "token": (of_pod(automountServiceAccountToken=True), "the token of its ServiceAccount"),
    "token by default": (lambda pod: pod["spec"].pop("automountServiceAccountToken"), "the token of its"),
    "first container": (of_pod(initContainers=[{"name": "first"}]), "spec.initContainers"),
    "second container": (lambda pod: pod["spec"]["containers"].append({"name": "b"}), "2 containers"),
    "files of the node": (more_volumes({"hostPath": {"path": "/"}}), "a volume of hostPath"),
    "projected token": (more_volumes({"projected": {"sources": []}}), "a volume of projected"),
    "root": (of_pod_context(runAsUser=0), "the user root"),
    "root by default": (of_pod_context(runAsNonRoot=False), "the user root"),
    "unconfined": (of_pod_context(seccompProfile={"type": "Unconfined"}), "every system call"),
    "sysctls": (of_pod_context(sysctls=[{"name": "a", "value": "b"}]), "spec.securityContext.sysctls"),
    "selinux": (of_pod_context(seLinuxOptions={"type": "spc_t"}), "spec.securityContext.seLinuxOptions"),
    "privileged": (of_context(privileged=True), "securityContext.privileged"),
    "root in the container": (of_context(runAsUser=0), "securityContext.runAsUser"),
    "proc": (of_context(procMount="Unmasked"), "securityContext.procMount"),
    "escalation": (of_context(allowPrivilegeEscalation=True), "allowPrivilegeEscalation"),
    "capabilities": (of_context(capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]}), "capabilities"),
    "no context": (lambda pod: pod["spec"]["containers"][0].pop("securityContext"), "capabilities"),
    "host port": (of_container(ports=[{"containerPort": 1, "hostPort": 1}]), "a port of its node"),
    "devices": (of_container(volumeDevices=[{"name": "disk", "devicePath": "/dev/sda"}]), "volumeDevices"),
    "apparmor": (
        of_metadata(**{"container.apparmor.security.beta.kubernetes.io/trainer": "unconfined"}),
        "annotation container.apparmor.security.beta.kubernetes.io/trainer=unconfined",
    ),
}


@pytest.mark.parametrize(("alter", "said"), REFUSED.values(), ids=REFUSED.keys())
async def test_no_pod_with_more_rights_is_made(
    client: FakeApiServer, cache: Cache, alter: Alter, said: str
) -> None:
    found = job_and_pods(cache, KEY)
    assert found is not None
    [pod, *_] = pods_of(run())
    assert await apply_children(client, cache, found.job, [pod]) is None
    [made] = client.objects(PODS)
    client.remove(PODS, made["metadata"]["name"])

    alter(pod.body)
    refusal = await apply_children(client, cache, found.job, [pod])
    assert client.objects(PODS) == ()
    assert refusal is not None and refusal.why.reason == "NotPermitted"
    assert said in refusal.why.message
