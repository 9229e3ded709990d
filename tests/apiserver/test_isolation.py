"""Who may write in a namespace of his own, or ConfigMaps but no pods, reaches the pods of no job."""

import json

import pytest

from .fake_kubelet import FakeKubelet, running_job
from .operator_harness import Namespace, OperatorProcess, wait_for_pods, wait_until

pytestmark = pytest.mark.apiserver

KEPT = ["example.test/keeps-it"]
"""Without a finalizer the garbage collector would take what names an owner of another namespace."""


def with_own_image(pods_json: str) -> str:
    templates = json.loads(pods_json)
    for template in templates.values():
        template["spec"]["containers"][0]["image"] = "elsewhere.example/own:1"
    return json.dumps(templates)


def config_of(namespace: Namespace):
    (config,) = namespace.core.list_namespaced_config_map(
        namespace.name, label_selector="app.kubernetes.io/managed-by=grpo-operator"
    ).items
    config.metadata.resource_version = config.metadata.uid = config.metadata.creation_timestamp = None
    return config


def test_objects_of_another_namespace_are_nobodys_children(
    namespace: Namespace, elsewhere: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start("--resync-seconds", "1", is_everywhere=True)
    (trainer,) = running_job(namespace, kubelet)
    config, engine = config_of(namespace), namespace.pods("rollout")[1]
    config.data["pods.json"] = with_own_image(config.data["pods.json"])
    for item in (config, trainer, engine):
        item.metadata.namespace, item.metadata.finalizers = elsewhere.name, KEPT
        item.metadata.resource_version = item.metadata.uid = item.metadata.creation_timestamp = None
    elsewhere.core.create_namespaced_config_map(elsewhere.name, config)
    trainer.spec.node_name = engine.spec.node_name = None
    ended = elsewhere.core.create_namespaced_pod(elsewhere.name, trainer)
    FakeKubelet(elsewhere).end(ended, exit_code=0)
    engine.metadata.name = engine.metadata.name.replace("rollout-1", "rollout-77")
    elsewhere.core.create_namespaced_pod(elsewhere.name, engine)

    lost = namespace.pods("rollout")[0]
    namespace.core.delete_namespaced_pod(lost.metadata.name, namespace.name, grace_period_seconds=0)
    wait_until("the engine is replaced", lambda: len(namespace.pods("rollout")) == 2)
    images = {pod.spec.containers[0].image for pod in namespace.pods("rollout")}
    assert images == {"example.test/runtime:1"}
    assert namespace.status()["phase"] == "Running"
    assert {pod.metadata.name for pod in elsewhere.core.list_namespaced_pod(elsewhere.name).items} == {
        ended.metadata.name,
        engine.metadata.name,
    }
    for item in elsewhere.core.list_namespaced_pod(elsewhere.name).items:
        elsewhere.core.patch_namespaced_pod(
            item.metadata.name, elsewhere.name, {"metadata": {"finalizers": None}}
        )
    elsewhere.core.patch_namespaced_config_map(
        config.metadata.name, elsewhere.name, {"metadata": {"finalizers": None}}
    )


def test_a_config_map_that_somebody_else_made_anew_makes_no_pod(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start()
    running_job(namespace, kubelet)
    operator.kill()  # which would else make it again between the two
    config = config_of(namespace)
    config.data["pods.json"] = with_own_image(config.data["pods.json"])
    namespace.core.delete_namespaced_config_map(config.metadata.name, namespace.name)
    namespace.core.create_namespaced_config_map(namespace.name, config)
    # what happens between its first list and its watch is seen with the next list
    operator.start("--resync-seconds", "1")
    namespace.patch_job({"spec": {"rollout": {"replicas": 3}}})  # which a tenant may
    wait_until(
        "the condition says it", lambda: namespace.condition("Ready").get("reason") == "RevisionChanged"
    )
    assert len(namespace.pods("rollout")) == 2
    assert len(namespace.pods("trainer")) == 1

    namespace.core.delete_namespaced_config_map(config.metadata.name, namespace.name)
    added = wait_for_pods(namespace, "rollout", 3)
    assert {pod.spec.containers[0].image for pod in added} == {"example.test/runtime:1"}
    assert config_of(namespace).data["pods.json"] != config.data["pods.json"]
