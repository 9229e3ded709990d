"""The NetworkPolicy of a job: its pods are reached by each other, and the trainer's reports by all."""

from grpo_api.contract import endpoints, labels
from grpo_operator.children.run import Child, Run
from grpo_operator.kinds import NETWORK_POLICIES, Manifest


def network_policy(run: Run) -> Child:
    """Ingress only, because where models and data come from is not ours to know.

    Inside the job every port is open: gloo and NCCL take any. From elsewhere only the port on which the
    supervisor tells progress and metrics, which says nothing secret and takes no commands: the operator,
    the API server's proxy and Prometheus call it, and none of them could be named here for every cluster.
    """
    members = {"podSelector": {"matchLabels": {labels.JOB_UID: run.uid}}}
    return Child(
        NETWORK_POLICIES,
        {
            "apiVersion": NETWORK_POLICIES.api_version,
            "kind": NETWORK_POLICIES.name,
            "metadata": run.metadata(run.names.network_policy),
            "spec": {
                **members,
                "policyTypes": ["Ingress"],
                "ingress": [
                    {"from": [members]},
                    {"ports": [{"protocol": "TCP", "port": endpoints.TRAINER_PORT}]},
                ],
            },
        },
    )


def says_the_same(desired: Child, found: Manifest) -> bool:
    """Whether a NetworkPolicy says what we want. What others add, such as egress, is theirs: applying ours
    again would not take it away."""
    wanted = desired.manifest["spec"]
    return all(found["spec"].get(field) == value for field, value in wanted.items())
