"""How the pods of a job reach each other: the headless Services, and the NetworkPolicy that keeps others
out."""

from collections.abc import Iterable, Sequence

from grpo_api.contract import endpoints, labels
from grpo_api.contract.environment import Role
from grpo_operator.children.child import Child
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.cluster.kinds import NETWORK_POLICIES, SERVICES, KubeObject

_PORTS = {
    Role.TRAINER: {"http": endpoints.TRAINER_PORT, "rendezvous": endpoints.RENDEZVOUS_PORT},
    Role.ROLLOUT: {"http": endpoints.ROLLOUT_PORT},
}


def service(snapshot: JobSnapshot, role: Role) -> Child:
    """The headless Service of a role. It resolves to pods that are not ready too: the trainer itself decides
    which engines it uses, and ranks must meet before their pods can be ready."""
    return Child(
        SERVICES,
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": snapshot.metadata(snapshot.names.service(role), role=role),
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": snapshot.selector(role),
                "ports": [
                    {"name": name, "port": port, "targetPort": port, "protocol": "TCP"}
                    for name, port in _PORTS[role].items()
                ],
            },
        },
    )


def is_service_up_to_date(desired: Child, found: KubeObject) -> bool:
    """Whether a Service has what we want; the API server adds more."""
    return _agree(desired, found, ("publishNotReadyAddresses", "selector", "ports"))


def network_policy(snapshot: JobSnapshot, *, reports_from: Sequence[KubeObject] | None) -> Child:
    """Ingress only, because the operator does not know where models and data come from.

    Inside the job every port is open: gloo and NCCL take any. From elsewhere only `reports_from` reach the
    port on which the supervisor serves progress and metrics, or everyone where that is None.
    """
    members = {"podSelector": {"matchLabels": {labels.JOB_UID: snapshot.uid}}}
    reports = {"ports": [{"protocol": "TCP", "port": endpoints.TRAINER_PORT}]}
    readers = {} if reports_from is None else {"from": list(reports_from)}
    return Child(
        NETWORK_POLICIES,
        {
            "apiVersion": NETWORK_POLICIES.api_version,
            "kind": NETWORK_POLICIES.name,
            "metadata": snapshot.metadata(snapshot.names.network_policy),
            "spec": {
                **members,
                "policyTypes": ["Ingress"],
                "ingress": [{"from": [members]}, {**readers, **reports}],
            },
        },
    )


def is_network_policy_up_to_date(desired: Child, found: KubeObject) -> bool:
    """Whether a NetworkPolicy has all the fields that we want. What others add, such as egress, stays theirs:
    applying ours again would not remove it."""
    return _agree(desired, found, desired.body["spec"])


def _agree(desired: Child, found: KubeObject, fields: Iterable[str]) -> bool:
    """Whether the object in the cluster has our labels and, in its spec, these fields as they are desired."""
    wanted, there = desired.body["spec"], found["spec"]
    return desired.has_its_labels(found) and all(there.get(field) == wanted[field] for field in fields)
