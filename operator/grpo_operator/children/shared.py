"""Children that all pods of a job share: the configuration, the tokens and a headless Service per role."""

import json

from grpo_api.contract import endpoints
from grpo_api.contract.environment import Role
from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_operator.children.run import Child, Run
from grpo_operator.kinds import CONFIG_MAPS, SECRETS, SERVICES, Manifest

RUN_CONFIG_KEY = "run.json"
FROZEN_SPEC_KEY = "spec.json"
TOKEN_FILES = (endpoints.DATA_TOKEN_FILE, endpoints.ADMIN_TOKEN_FILE)

_PORTS = {
    Role.TRAINER: {"http": endpoints.TRAINER_PORT, "rendezvous": endpoints.RENDEZVOUS_PORT},
    Role.ROLLOUT: {"http": endpoints.ROLLOUT_PORT},
}


def config_map(run: Run) -> Child:
    """The immutable ConfigMap of a revision: the RunConfig for the pods, and the frozen spec for us."""
    return Child(
        CONFIG_MAPS,
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": run.metadata(run.names.config(run.revision)),
            "immutable": True,
            "data": {
                RUN_CONFIG_KEY: json.dumps(run.config.to_object(), indent=2),
                FROZEN_SPEC_KEY: json.dumps(run.spec.to_object()),
            },
        },
    )


def frozen_spec(config: Manifest) -> GRPOJobSpec:
    """The spec a ConfigMap of ours was made from; raises pydantic's ValidationError when it is broken."""
    return GRPOJobSpec.model_validate_json(config["data"][FROZEN_SPEC_KEY])


def tokens(run: Run) -> Child:
    """The Secret, without its values: they are drawn when it is created and never read back."""
    return Child(
        SECRETS,
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": run.metadata(run.names.tokens),
            "type": "Opaque",
            "immutable": True,
        },
    )


def service(run: Run, role: Role) -> Child:
    """The headless Service of a role. It names pods that are not ready too: the trainer decides itself
    which engines it works with, and ranks must meet before they can be ready."""
    return Child(
        SERVICES,
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": run.metadata(run.names.service(role), role=role),
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": run.selector(role),
                "ports": [
                    {"name": name, "port": port, "targetPort": port, "protocol": "TCP"}
                    for name, port in _PORTS[role].items()
                ],
            },
        },
    )


def is_up_to_date(desired: Child, found: Manifest) -> bool:
    """Whether a Service says what we want, whatever the server added to it."""
    want = desired.manifest["spec"]
    have = found["spec"]
    return all(have.get(key) == want[key] for key in ("publishNotReadyAddresses", "selector", "ports"))
