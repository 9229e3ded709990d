"""What a job may ask for, and what waits until the administrator of the operator allows it."""

from typing import Any

import pytest

from grpo_operator.permissions import (
    ANNOTATIONS,
    ENGINE_ARGUMENTS,
    NO_PERMISSIONS,
    QUEUES,
    Permissions,
    not_permitted,
)

from .fake_cluster import FakeCluster, spec

OTHERS = {"labelSelector": {}, "topologyKey": "zone"}


def template(**parts: Any) -> dict[str, Any]:
    return {"rollout": {"replicas": 1, "podTemplate": parts}}


def args(*given: str) -> dict[str, Any]:
    return {"rollout": {"replicas": 1}, "engine": {"args": list(given)}}


def affinity(kind: str, **term: Any) -> dict[str, Any]:
    return template(
        spec={"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [OTHERS | term]}}}
    )


def preferred(**term: Any) -> dict[str, Any]:
    weighted = {"weight": 1, "podAffinityTerm": OTHERS | term}
    return template(
        spec={"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [weighted]}}}
    )


ASKED: dict[str, tuple[dict[str, Any], Permissions | None, str]] = {
    "identity of a cloud": (
        template(metadata={"annotations": {"iam.amazonaws.com/role": "prod"}}),
        Permissions(annotations=("iam.amazonaws.com/",)),
        "rollout.podTemplate.metadata.annotations (iam.amazonaws.com/role)",
    ),
    "network": (
        template(metadata={"annotations": {"k8s.v1.cni.cncf.io/networks": "kube-system/storage"}}),
        Permissions(annotations=("k8s.v1.cni.cncf.io/networks",)),
        "--allow-annotation=k8s.v1.cni.cncf.io/networks",
    ),
    "gang": (
        {"scheduling": {"gang": "Volcano"}},
        Permissions(gangs=("Volcano",)),
        "add it to gangs of the chart (--allow-gang=Volcano)",
    ),
    "label": (
        template(metadata={"labels": {"app": "prometheus"}}),
        Permissions(labels=("app",)),
        "add it to podTemplates.labels of the chart (--allow-label=app)",
    ),
    "priority": (
        template(spec={"priorityClassName": "system-node-critical"}),
        Permissions(priority_classes=("system-node-critical",)),
        "podTemplates.priorityClasses",
    ),
    "runtime": (
        template(spec={"runtimeClassName": "unsafe"}),
        Permissions(runtime_classes=("unsafe",)),
        "podTemplates.runtimeClasses",
    ),
    "account": (
        template(spec={"serviceAccountName": "reader"}),
        Permissions(service_accounts=("other", "reader")),
        "podTemplates.serviceAccounts",
    ),
    "network of the node": (
        template(spec={"hostNetwork": True}),
        Permissions(has_host_network=True),
        "podTemplates.hostNetwork=true",
    ),
    "argument": (
        args('--kv-transfer-config={"kv_connector": "x"}'),
        Permissions(engine_arguments=("kv-transfer-config",)),
        "engine.args (--kv-transfer-config) is not one that this operator allows",
    ),
    "abbreviated": (args("--block=1"), Permissions(engine_arguments=("block",)), "engine.args (--block)"),
    "negated": (args("--no-enable-mm-embeds"), Permissions(engine_arguments=("*",)), "--no-enable-mm-embeds"),
    "others by name": (affinity("podAntiAffinity", namespaces=["team-b"]), None, "remove namespaces"),
    "preferred": (preferred(namespaces=["team-b"]), None, "which could keep those from their nodes"),
}


@pytest.mark.parametrize(("asked", "permission", "said"), ASKED.values(), ids=ASKED.keys())
def test_what_means_more_than_a_pod_waits_until_it_is_allowed(
    asked: dict[str, Any], permission: Permissions | None, said: str
) -> None:
    [problem] = not_permitted(spec(**asked), NO_PERMISSIONS)
    assert said in problem
    cluster = FakeCluster(spec(**asked))
    cluster.settle()
    assert (cluster.pods, cluster.status.attempt) == ({}, 0)
    if permission is not None:
        assert not_permitted(spec(**asked), permission) == []
        cluster.permissions = permission
        cluster.start()
        cluster.permissions = NO_PERMISSIONS  # a job that has started continues
        cluster.settle()
        assert cluster.names("rollout")


@pytest.mark.parametrize(
    "asked",
    [
        *(
            template(metadata={"annotations": {f"{name}x" if name.endswith("/") else name: "1"}})
            for name in ANNOTATIONS
        ),
        *(
            template(metadata={"labels": {f"{name}x" if name.endswith("/") else name: "1"}})
            for name in QUEUES
        ),
        template(spec={"runtimeClassName": "nvidia"}),
        args("--enforce-eager", "--no-enable-prefix-caching", "--max-num-batched-tokens=8192"),
        affinity("podAffinity"),
        preferred(),
    ],
)
def test_what_gives_no_right_passes(asked: dict[str, Any]) -> None:
    assert not_permitted(spec(**asked), NO_PERMISSIONS) == []


@pytest.mark.parametrize("name", ["kueue.x-k8s.io", "kueue.x-k8s.iox/y", "xkueue.x-k8s.io/y", "runai"])
def test_a_label_that_only_looks_like_one_of_a_queue_does_not_pass(name: str) -> None:
    assert len(not_permitted(spec(**template(metadata={"labels": {name: "x"}})), NO_PERMISSIONS)) == 1


@pytest.mark.parametrize(
    "name",
    [
        *(
            "kv-transfer-config",
            "kv-events-config",
            "ec-transfer-config",
            "data-parallel-address",
            "scheduler-cls",
        ),
        *("logits-processors", "tool-parser-plugin", "reasoning-parser-plugin", "io-processor-plugin"),
        *(
            "compilation-config",
            "additional-config",
            "hf-overrides",
            "model-class-overrides",
            "log-config-file",
        ),
        *(
            "otlp-traces-endpoint",
            "profiler-config",
            "allowed-local-media-path",
            "download-dir",
            "tool-server",
        ),
        *(
            "chat-template",
            "generation-config",
            "speculative-config",
            "lora-modules",
            "api-server-count",
            "grpc",
        ),
    ],
)
def test_an_argument_that_opens_a_socket_reads_a_file_or_loads_code_is_not_among_those_that_pass(
    name: str,
) -> None:
    assert name not in ENGINE_ARGUMENTS
    assert len(not_permitted(spec(**args(f"--{name}=x")), NO_PERMISSIONS)) == 1


def test_everything_that_is_asked_for_is_named_at_once() -> None:
    metadata = {"labels": {"app": "x", "team": "y"}}
    asked = {"trainer": {"podTemplate": {"metadata": metadata, "spec": {"priorityClassName": "high"}}}}
    assert len(not_permitted(spec(**asked), NO_PERMISSIONS)) == 3
    assert len(not_permitted(spec(**asked), Permissions(labels=("*",)))) == 1
