"""A job that is suspended and continues, one that a GitOps controller tracks, one of another controller, and
one that is changed before it is deleted, on a real API server."""

from pathlib import Path

import pytest

from grpo_operator.cluster import errors
from grpo_operator.cluster.client import Client
from grpo_operator.cluster.kinds import JOBS

from .api_server import Kubectl
from .fake_kubelet import FakeKubelet, running_job
from .operator_harness import Namespace, OperatorProcess, wait_for_pods, wait_until

pytestmark = pytest.mark.apiserver


def test_a_suspended_job_loses_its_pods_and_continues_as_the_next_attempt(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet, kubectl: Kubectl
):
    operator.start()
    (trainer,) = running_job(namespace, kubelet)
    kubelet.bind(trainer)  # its deletion waits for the end of its processes
    namespace.patch_job({"spec": {"suspend": True}})
    wait_until(
        "its pods are asked to end", lambda: namespace.pods("trainer") == namespace.pods("rollout") == []
    )
    suspending = wait_until("it says so", lambda: namespace.condition("Suspended"))
    assert (suspending["status"], suspending["reason"]) == ("False", "Suspending")
    assert trainer.metadata.name in suspending["message"]
    kubelet.finish(trainer.metadata.name)
    kubectl.run("wait", "--for=condition=Suspended", "grpojob/copy", "-n", namespace.name, "--timeout=30s")
    assert namespace.status()["phase"] == "Suspended"

    operator.kill()
    operator.start()  # what suspends it is in its spec and status
    namespace.patch_job({"spec": {"suspend": False}})
    wait_for_pods(namespace, "trainer", 1, attempt=2)
    status = namespace.status()
    assert (status["attempt"], status.get("restarts", 0), status.get("disruptions", 0)) == (2, 0, 0)
    assert namespace.condition("Suspended")["status"] == "False"


def test_a_tracked_job_stays_after_its_time_and_a_job_of_another_controller_is_not_touched(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    namespace.apply_job("elsewhere", managedBy="kueue.x-k8s.io/multikueue")
    version = namespace.job("elsewhere")["metadata"]["resourceVersion"]
    namespace.apply_job("tracked", ttlSecondsAfterFinished=0)
    mark = {"argocd.argoproj.io/tracking-id": "jobs:grpo.dev/GRPOJob:default/tracked"}
    namespace.patch_job({"metadata": {"annotations": mark}}, "tracked")
    operator.start()
    (trainer,) = wait_for_pods(namespace, "trainer", 1)
    kubelet.run(trainer)
    kubelet.end(trainer, exit_code=0)
    notes = wait_until("it says why it stays", lambda: namespace.status("tracked").get("notes"))
    assert "because Argo CD (argocd.argoproj.io/tracking-id) tracks it" in notes
    about = "reason=NotDeleted"
    events = wait_until(
        "an Event says so",
        lambda: namespace.core.list_namespaced_event(namespace.name, field_selector=about).items,
    )
    assert [event.involved_object.name for event in events] == ["tracked"]
    untouched = namespace.job("elsewhere")
    assert (untouched["metadata"]["resourceVersion"], "phase" in untouched.get("status", {})) == (
        version,
        False,
    )


async def test_a_job_is_deleted_in_the_state_that_was_seen_only(namespace: Namespace, kubeconfig: Path):
    seen = namespace.apply_job()["metadata"]
    namespace.patch_job({"spec": {"ttlSecondsAfterFinished": 3600}})
    client = await Client.connect(kubeconfig=str(kubeconfig))
    try:
        with pytest.raises(errors.Conflict):
            await client.delete(
                JOBS, namespace.name, "copy", uid=seen["uid"], resource_version=seen["resourceVersion"]
            )
        now = namespace.job()["metadata"]["resourceVersion"]
        await client.delete(JOBS, namespace.name, "copy", uid=seen["uid"], resource_version=now)
    finally:
        await client.close()
    assert namespace.jobs() == []
