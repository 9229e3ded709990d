"""The NetworkPolicy of a job: its pods reach each other, and who may reads the trainer's reports."""

from collections.abc import Sequence

from grpo_api.contract import endpoints, labels
from grpo_operator.children.child import Child
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.cluster.kinds import NETWORK_POLICIES, KubeObject


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


def is_up_to_date(desired: Child, found: KubeObject) -> bool:
    """Whether a NetworkPolicy has all the fields that we want. What others add, such as egress, stays theirs:
    applying ours again would not remove it."""
    wanted = desired.body["spec"]
    return desired.has_its_labels(found) and all(
        found["spec"].get(field) == value for field, value in wanted.items()
    )
