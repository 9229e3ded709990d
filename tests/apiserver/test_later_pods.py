"""Later pods of a run, made by an operator process that has not seen the first ones begin."""

import json

import pytest

from grpo_operator.children.config import content_digest

from .fake_kubelet import FakeKubelet, running_job
from .operator_harness import Namespace, OperatorProcess, wait_for_pods, wait_until

pytestmark = pytest.mark.apiserver

DIGEST = "example.test/runtime@sha256:" + "a" * 64


def test_later_pods_have_the_build_and_the_template_of_the_first(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start()
    (trainer,) = running_job(namespace, kubelet)
    kubelet.run(trainer, image_id=DIGEST)
    wait_until("the build is known", lambda: namespace.status().get("imageId") == DIGEST)
    operator.kill()
    (config,) = namespace.core.list_namespaced_config_map(
        namespace.name, label_selector="app.kubernetes.io/managed-by=grpo-operator"
    ).items
    namespace.core.delete_namespaced_config_map(config.metadata.name, namespace.name)
    templates = json.loads(config.data["pods.json"])
    for template in templates.values():
        template["metadata"]["labels"]["older"] = "release"
    config.data["pods.json"] = json.dumps(templates)
    config.metadata.resource_version = None
    namespace.core.create_namespaced_config_map(namespace.name, config)
    namespace.patch_status({"configDigest": content_digest({"data": config.data})})
    operator.start()
    kubelet.end(trainer, exit_code=1, message="boom")
    (later,) = wait_for_pods(namespace, "trainer", 1, attempt=2)
    kubelet.run(later)
    lost = namespace.pods("rollout")[0]
    namespace.core.delete_namespaced_pod(lost.metadata.name, namespace.name, grace_period_seconds=0)
    wait_until("the engine is replaced", lambda: len(namespace.pods("rollout")) == 2)
    known = {pod.metadata.name for pod in (trainer, lost)}
    replaced = next(pod for pod in namespace.pods("rollout") if pod.metadata.name.endswith("-i1"))
    for pod in (later, replaced):
        assert pod.metadata.name not in known
        assert pod.metadata.labels["older"] == "release"
        assert pod.spec.containers[0].image == DIGEST
        assert pod.spec.hostname == pod.metadata.name


def test_an_eviction_for_its_own_storage_is_counted_across_a_restart_of_the_operator(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start()
    (trainer,) = running_job(namespace, kubelet)
    message = 'Container trainer exceeded its local ephemeral storage limit "1Gi". '
    kubelet.evict(trainer, message=message)
    (second,) = wait_for_pods(namespace, "trainer", 1, attempt=2)
    operator.kill()
    status = namespace.status()
    assert (status["restarts"], status["failuresSinceProgress"], status["disruptions"]) == (1, 1, 0)
    assert message.strip() in status["lastFailure"]["message"]
    operator.start()
    kubelet.evict(second, message=message)
    wait_until("attempt 3 is decided", lambda: namespace.status()["attempt"] == 3)
    wait_until("it is said", lambda: "2 failures" in namespace.condition("Running")["message"])
    assert namespace.status()["failuresSinceProgress"] == 2
