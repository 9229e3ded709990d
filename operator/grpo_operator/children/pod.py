"""What every pod of a job has in common, whatever its role: Pod Security `restricted` and writable
directories."""

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_api.contract import labels
from grpo_api.contract.environment import Env, Role
from grpo_api.contract.run_config import run_config_digest
from grpo_api.v1alpha1.spec import GRPOJobSpec, ResourcesSpec
from grpo_api.v1alpha1.spec.pod_template import PodTemplateSpec
from grpo_operator.children.child import Child
from grpo_operator.children.mounts import (
    HUB_DIR,
    HUB_TOKEN_DIR,
    HUB_TOKEN_KEY,
    VOLUMES_DIR,
    Mount,
    compiled_cache,
    hub_cache,
    hub_token,
    sources,
    volumes_and_mounts,
)
from grpo_operator.children.overlay import own_mounts, with_overlay
from grpo_operator.children.scheduling import with_scheduling
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.children.template import Open, filled
from grpo_operator.cluster.kinds import PODS, KubeObject

USER_ID = 1000
CONFIG_DIR = "/etc/grpo/config"
RUN_CONFIG_KEY = "run.json"
TOKENS_DIR = "/etc/grpo/tokens"
CACHE_DIR = "/cache"
OUTPUT_DIR = "/output"
NODE_LOST_SECONDS = 30
"""How long a pod stays on a node that stopped answering."""
STOPPED_SECONDS = 1
"""activeDeadlineSeconds of a pod that is to end and to stay: its node ends one that is older."""

DATASETS_DIR = f"{CACHE_DIR}/huggingface/datasets"
COMPILED_DIR = f"{CACHE_DIR}/compiled"
"""Code and pickles that libraries load without a check: in the pod, unless the job names a claim for them."""
COMPILED = {
    "VLLM_CACHE_ROOT": f"{COMPILED_DIR}/vllm",
    "TORCHINDUCTOR_CACHE_DIR": f"{COMPILED_DIR}/inductor",
    "TRITON_CACHE_DIR": f"{COMPILED_DIR}/triton",
    "FLASHINFER_WORKSPACE_BASE": f"{COMPILED_DIR}/flashinfer",
}
_DIRECTORIES = {
    "HOME": CACHE_DIR,
    "USER": "grpo",
    "TMPDIR": "/tmp",  # noqa: S108 - an emptyDir of the pod
    "XDG_CACHE_HOME": f"{CACHE_DIR}/xdg",
    "HF_HOME": f"{CACHE_DIR}/huggingface",
}
"""A numeric user has no entry in /etc/passwd, and libraries ask for a home and a cache."""


def pod_from_template(
    snapshot: JobSnapshot,
    template: KubeObject,
    values: Mapping[Open, str],
    *,
    role: Role,
    grace_seconds: int,
    given_back: int,
) -> Child:
    """A pod as it is created: its template with `values` in it, and what is only known when a pod is created.
    `given_back` is how often the job had given its nodes back by then: its label distinguishes the pods that
    were given back from those that came afterwards."""
    own_labels = {labels.GIVEN_BACK: str(given_back)} if given_back else {}
    pod = filled(template, values, labels=own_labels, grace_seconds=grace_seconds)
    return Child(PODS, pod, allowed=pod_template_of(snapshot.spec, role=role))


def pod_template(
    snapshot: JobSnapshot,
    *,
    metadata: KubeObject,
    role: Role,
    container: KubeObject,
    restart_policy: str,
    environment: Mapping[Env, str],
    mounts: Sequence[Mount] = (),
    is_found_by_name: bool = True,
) -> KubeObject:
    """The template of a pod around one container, whose name, command, ports, resources and probes are in
    `container`. A pod that others find by its name belongs to the Service of its role."""
    variables: dict[str, str] = {
        **_DIRECTORIES,
        **COMPILED,
        Env.ROLE: role.value,
        Env.RUN_CONFIG: f"{CONFIG_DIR}/{RUN_CONFIG_KEY}",
        Env.RUN_CONFIG_DIGEST: run_config_digest(snapshot.run_config_text.encode()),
        Env.CACHE_DIR: CACHE_DIR,
        Env.VOLUMES_DIR: VOLUMES_DIR,
        **_hub(snapshot),
        **({Env.TOKENS_DIR: TOKENS_DIR} if snapshot.needs_tokens else {}),
        **{str(name): value for name, value in environment.items()},
    }
    overlay = pod_template_of(snapshot.spec, role=role)
    shared_memory = _shared_memory_limit(snapshot.spec, role=role)
    volumes, mounted = volumes_and_mounts(
        [
            *_common_mounts(snapshot, shared_memory=shared_memory),
            *sources(snapshot),
            *hub_cache(snapshot),
            *hub_token(snapshot),
            *(compiled_cache(snapshot, path=COMPILED_DIR) if _has_engines(snapshot, role=role) else []),
            *mounts,
            *own_mounts(overlay),
        ]
    )
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "restartPolicy": restart_policy,
            "hostname": metadata["name"],
            **({"subdomain": snapshot.names.service(role)} if is_found_by_name else {}),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER_ID,
                "runAsGroup": USER_ID,
                "fsGroup": USER_ID,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "tolerations": [_tolerated_briefly(taint) for taint in ("not-ready", "unreachable")],
            **_pull_secrets(snapshot),
            "volumes": volumes,
            "containers": [
                {
                    **container,
                    "image": Open.IMAGE.value,
                    "imagePullPolicy": "IfNotPresent",
                    "env": _env_entries(variables),
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "volumeMounts": mounted,
                }
            ],
        },
    }
    return with_scheduling(with_overlay(pod, overlay), snapshot, role=role)


def pod_template_of(spec: GRPOJobSpec, *, role: Role) -> PodTemplateSpec | None:
    """What a job adds to the pods of a role."""
    pods = spec.rollout if role is Role.ROLLOUT else spec.trainer
    return pods.pod_template if pods is not None else None


def grace_seconds_of(spec: GRPOJobSpec, *, role: Role) -> int | None:
    """How long a job's pods of a role may take to end, where it says so."""
    overlay = pod_template_of(spec, role=role)
    return overlay.spec.termination_grace_period_seconds if overlay and overlay.spec else None


def resources(spec: ResourcesSpec) -> dict[str, Any]:
    """A container's resources; empty parts are left out."""
    return {
        key: dict(value) for key, value in (("limits", spec.limits), ("requests", spec.requests)) if value
    }


def http_probe(
    path: str, *, port: int, period_seconds: int, failures: int, timeout_seconds: int = 5
) -> KubeObject:
    """A probe that fails after `failures` times `period_seconds`."""
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period_seconds,
        "failureThreshold": failures,
        "timeoutSeconds": timeout_seconds,
    }


def _has_engines(snapshot: JobSnapshot, *, role: Role) -> bool:
    """Whether pods of a role have engines in them."""
    return role is Role.ROLLOUT or not snapshot.has_rollout


def _shared_memory_limit(spec: GRPOJobSpec, *, role: Role) -> str:
    """The size of a pod's `/dev/shm`. Where the GPUs of a pod do not reach each other directly, NCCL passes
    everything through it, with buffers for every process. Only what is used counts as memory of the pod."""
    overlay = pod_template_of(spec, role=role)
    if overlay is not None and overlay.shared_memory is not None:
        return str(overlay.shared_memory)
    num_gpus = spec.num_rollout_gpus if role is Role.ROLLOUT else spec.trainer.num_gpus
    return f"{1 + num_gpus if num_gpus > 1 else 1}Gi"


def _common_mounts(snapshot: JobSnapshot, *, shared_memory: str) -> list[Mount]:
    """The RunConfig, the tokens and the writable directories of a pod."""
    config = {
        "name": snapshot.names.config(snapshot.revision),
        "items": [{"key": RUN_CONFIG_KEY, "path": RUN_CONFIG_KEY}],
    }
    tokens = {"secretName": snapshot.names.tokens, "defaultMode": 0o440}
    shm = {"medium": "Memory", "sizeLimit": shared_memory}
    return [
        Mount("config", CONFIG_DIR, {"configMap": config}, is_read_only=True),
        *(
            [Mount("tokens", TOKENS_DIR, {"secret": tokens}, is_read_only=True)]
            if snapshot.needs_tokens
            else []
        ),
        Mount("cache", CACHE_DIR, {"emptyDir": {}}),
        Mount("tmp", "/tmp", {"emptyDir": {}}),  # noqa: S108 - an emptyDir of the pod
        Mount("shm", "/dev/shm", {"emptyDir": shm}),  # noqa: S108 - likewise
    ]


def _env_entries(variables: Mapping[str, str]) -> list[KubeObject]:
    return [{"name": str(name), "value": value} for name, value in sorted(variables.items())]


def _hub(snapshot: JobSnapshot) -> dict[str, str]:
    hub = snapshot.spec.hub
    # `datasets` writes converted files and locks: they need a directory that is writable.
    cache = {"HF_HOME": HUB_DIR, "HF_DATASETS_CACHE": DATASETS_DIR} if hub.cache_claim else {}
    # a file, and not HF_TOKEN: every process inherits variables, and they end up in logs and crash reports
    token = {"HF_TOKEN_PATH": f"{HUB_TOKEN_DIR}/{HUB_TOKEN_KEY}"} if hub.token_secret else {}
    return cache | token | ({"HF_HUB_OFFLINE": "1"} if hub.offline else {})


def _pull_secrets(snapshot: JobSnapshot) -> dict[str, list[KubeObject]]:
    names = snapshot.spec.image_pull_secrets
    return {"imagePullSecrets": [{"name": name} for name in names]} if names else {}


def _tolerated_briefly(taint: str) -> KubeObject:
    return {
        "key": f"node.kubernetes.io/{taint}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": NODE_LOST_SECONDS,
    }
