"""Children that all pods of a job share besides the ConfigMap: the tokens and the headless Services."""

from grpo_api.contract import endpoints
from grpo_api.contract.environment import Role
from grpo_operator.children.child import Child
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.cluster.kinds import SECRETS, SERVICES, KubeObject

TOKEN_FILES = (endpoints.DATA_TOKEN_FILE, endpoints.ADMIN_TOKEN_FILE)

_PORTS = {
    Role.TRAINER: {"http": endpoints.TRAINER_PORT, "rendezvous": endpoints.RENDEZVOUS_PORT},
    Role.ROLLOUT: {"http": endpoints.ROLLOUT_PORT},
}


def tokens(snapshot: JobSnapshot) -> Child:
    """The Secret, without its values: they are made when it is created and never read back."""
    return Child(
        SECRETS,
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": snapshot.metadata(snapshot.names.tokens),
            "type": "Opaque",
            "immutable": True,
        },
    )


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


def is_up_to_date(desired: Child, found: KubeObject) -> bool:
    """Whether a Service has what we want; the API server adds more."""
    if not desired.has_its_labels(found):
        return False
    want = desired.body["spec"]
    have = found["spec"]
    return all(have.get(key) == want[key] for key in ("publishNotReadyAddresses", "selector", "ports"))
