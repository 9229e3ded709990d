"""A pod that belongs to no job."""

from collections.abc import Sequence

from grpo_scenarios.namespace import Object

NAME_LABEL = "app.kubernetes.io/name"


def bare_pod(name: str, command: Sequence[str], *, image: str) -> Object:
    """A pod that runs a command once, under Pod Security `restricted`, with its name as a label."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {NAME_LABEL: name}},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": name,
                    "image": image,
                    "command": list(command),
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        },
    }
