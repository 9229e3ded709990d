"""What every pod of a job has in common, whatever its role: Pod Security `restricted` and writable places."""

from collections.abc import Mapping
from typing import Any

from grpo_api.contract.environment import Env, Role
from grpo_api.v1alpha1.spec import ResourcesSpec
from grpo_operator.children.run import Run
from grpo_operator.children.shared import RUN_CONFIG_KEY
from grpo_operator.kinds import Manifest

USER_ID = 1000
CONFIG_DIR = "/etc/grpo/config"
TOKENS_DIR = "/etc/grpo/tokens"
CACHE_DIR = "/cache"
OUTPUT_DIR = "/output"
NODE_LOST_SECONDS = 30
"""How long a pod stays on a node that stopped answering."""

_SHARED_MEMORY_LIMIT = "1Gi"
_PLACES = {
    "HOME": CACHE_DIR,
    "USER": "grpo",
    "TMPDIR": "/tmp",  # noqa: S108 - an emptyDir of the pod
    "XDG_CACHE_HOME": f"{CACHE_DIR}/xdg",
    "HF_HOME": f"{CACHE_DIR}/huggingface",
}
"""A numeric user has no entry in /etc/passwd, and libraries ask for a home and a cache."""


def pod(
    run: Run,
    *,
    metadata: Manifest,
    role: Role,
    container: Manifest,
    restart_policy: str,
    grace_seconds: int,
    environment: Mapping[Env, str],
    volumes: list[Manifest] | None = None,
    mounts: list[Manifest] | None = None,
) -> Manifest:
    """A pod around one container, whose name, command, ports, resources and probes are in `container`."""
    variables: dict[str, str] = {
        **_PLACES,
        Env.ROLE: role.value,
        Env.RUN_CONFIG: f"{CONFIG_DIR}/{RUN_CONFIG_KEY}",
        Env.TOKENS_DIR: TOKENS_DIR,
        Env.CACHE_DIR: CACHE_DIR,
        **{str(name): value for name, value in environment.items()},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "restartPolicy": restart_policy,
            "terminationGracePeriodSeconds": grace_seconds,
            "hostname": metadata["name"],
            "subdomain": run.names.service(role),
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
            "tolerations": [_stays_briefly(taint) for taint in ("not-ready", "unreachable")],
            "volumes": [*_volumes(run), *(volumes or [])],
            "containers": [
                {
                    **container,
                    "image": run.image,
                    "imagePullPolicy": "IfNotPresent",
                    "env": [{"name": str(name), "value": value} for name, value in sorted(variables.items())],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "volumeMounts": [
                        {"name": "config", "mountPath": CONFIG_DIR, "readOnly": True},
                        {"name": "tokens", "mountPath": TOKENS_DIR, "readOnly": True},
                        {"name": "cache", "mountPath": CACHE_DIR},
                        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - an emptyDir of the pod
                        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - likewise
                        *(mounts or []),
                    ],
                }
            ],
        },
    }


def resources(spec: ResourcesSpec) -> dict[str, Any]:
    """A container's resources; empty parts are left out."""
    return {
        key: dict(value) for key, value in (("limits", spec.limits), ("requests", spec.requests)) if value
    }


def http_probe(
    path: str, *, port: int, period_seconds: int, failures: int, timeout_seconds: int = 5
) -> Manifest:
    """A probe that gives up after `failures` times `period_seconds`."""
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period_seconds,
        "failureThreshold": failures,
        "timeoutSeconds": timeout_seconds,
    }


def _volumes(run: Run) -> list[Manifest]:
    return [
        {
            "name": "config",
            "configMap": {
                "name": run.names.config(run.revision),
                "items": [{"key": RUN_CONFIG_KEY, "path": RUN_CONFIG_KEY}],
            },
        },
        {"name": "tokens", "secret": {"secretName": run.names.tokens, "defaultMode": 0o440}},
        {"name": "cache", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _SHARED_MEMORY_LIMIT}},
    ]


def _stays_briefly(taint: str) -> Manifest:
    return {
        "key": f"node.kubernetes.io/{taint}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": NODE_LOST_SECONDS,
    }
