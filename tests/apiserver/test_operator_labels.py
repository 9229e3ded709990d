"""Labels are taken away from a job's children, and a job is made anew at once under its name."""

import pytest

from grpo_api.contract.labels import MANAGED_BY

from .fake_kubelet import FakeKubelet, running_job
from .operator_harness import Namespace, OperatorProcess, wait_for_pods, wait_until

pytestmark = pytest.mark.apiserver
GONE = {"metadata": {"labels": {MANAGED_BY: None}}}


def test_a_child_that_lost_its_label_is_neither_replaced_nor_lost(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start("--resync-seconds", "1")
    (trainer,) = running_job(namespace, kubelet)
    engines = namespace.pods("rollout")
    (config,) = [c for c in namespace.core.list_namespaced_config_map(namespace.name).items if c.immutable]
    service = namespace.core.list_namespaced_service(namespace.name).items[0].metadata.name
    for pod in (trainer, engines[0]):
        namespace.core.patch_namespaced_pod(pod.metadata.name, namespace.name, GONE)
    namespace.core.patch_namespaced_config_map(config.metadata.name, namespace.name, GONE)
    namespace.core.patch_namespaced_service(service, namespace.name, GONE)

    def has_label() -> bool:
        found = namespace.core.read_namespaced_service(service, namespace.name)
        return MANAGED_BY in found.metadata.labels

    wait_until("the Service has its label again", has_label)
    namespace.patch_job({"spec": {"rollout": {"replicas": 3}}})  # two lists later the operator still acts
    added = wait_for_pods(namespace, "rollout", 3)
    assert {pod.metadata.name for pod in engines} < {pod.metadata.name for pod in added}
    assert [pod.metadata.uid for pod in namespace.pods("trainer")] == [trainer.metadata.uid]
    status = namespace.status()
    assert (status["attempt"], status["phase"], status.get("lastFailure")) == (1, "Running", None)
    kubelet.end(trainer, exit_code=0)
    wait_until("its end is seen", lambda: namespace.status()["phase"] == "Succeeded")
    wait_until("every engine is given back", lambda: namespace.pods("rollout") == [])


def test_a_job_made_anew_at_once_starts_beside_what_is_left_of_the_other(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start("--resync-seconds", "1")
    (old,) = running_job(namespace, kubelet)
    kubelet.bind(old)  # its deletion waits for its node
    namespace.delete_job()
    namespace.apply_job()
    new = wait_until(
        "a trainer pod of the new job",
        lambda: [p for p in namespace.pods("trainer") if p.metadata.name != old.metadata.name],
    )
    (owner,) = new[0].metadata.owner_references
    assert owner.uid == namespace.job()["metadata"]["uid"] != old.metadata.owner_references[0].uid
    found = namespace.core.read_namespaced_pod(old.metadata.name, namespace.name)
    assert found.metadata.uid == old.metadata.uid
    assert namespace.status()["attempt"] == 1
    for pod in [
        *new,
        *[p for p in namespace.pods("rollout") if p.metadata.owner_references[0].uid == owner.uid],
    ]:
        kubelet.run(pod)
    wait_until("the new job runs", lambda: namespace.status()["phase"] == "Running")
    assert namespace.status().get("lastFailure") is None
