"""What every pod of a job mounts: the immutable ConfigMap of a run and the Secret with the tokens.

The ConfigMap also holds what the operator recorded when the run started.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache

from pydantic import TypeAdapter

from grpo_api.contract import endpoints
from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_operator.children.child import Child
from grpo_operator.children.pod import RUN_CONFIG_KEY
from grpo_operator.children.rollout import rollout_template
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.children.template import Template
from grpo_operator.children.trainer import trainer_template
from grpo_operator.cluster.kinds import CONFIG_MAPS, SECRETS, KubeObject

SPEC_KEY = "spec.json"
TEMPLATES_KEY = "pods.json"
TOKEN_FILES = (endpoints.DATA_TOKEN_FILE, endpoints.ADMIN_TOKEN_FILE)

_TEMPLATES = TypeAdapter(dict[str, KubeObject])


def config_map(snapshot: JobSnapshot) -> Child:
    """The ConfigMap of a revision: the RunConfig for the pods, the stored spec and the pod templates for the
    operator."""
    return Child(
        CONFIG_MAPS,
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": snapshot.metadata(snapshot.names.config(snapshot.revision)),
            "immutable": True,
            "data": {
                RUN_CONFIG_KEY: snapshot.run_config_text,
                SPEC_KEY: json.dumps(snapshot.spec.to_object()),
                TEMPLATES_KEY: json.dumps(_templates(snapshot)),
            },
        },
    )


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


def content_digest(config: KubeObject) -> str:
    """SHA-256 of all that a ConfigMap holds, in hex."""
    content = [config.get("data") or {}, config.get("binaryData") or {}]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def stored_spec(config: KubeObject) -> GRPOJobSpec:
    """The spec a ConfigMap of ours was made from; raises pydantic's ValidationError when it is broken."""
    return _read_spec(config["data"][SPEC_KEY])


def pod_templates(config: KubeObject) -> Mapping[str, KubeObject]:
    """The pod templates in a ConfigMap of ours; raises pydantic's ValidationError when they are broken."""
    return _read_templates(config["data"][TEMPLATES_KEY])


# A ConfigMap of ours never changes, and a job that starts is reconciled many times in a row. Few are held:
# parsed templates take seven times the memory of their text.
@lru_cache(maxsize=32)
def _read_spec(text: str) -> GRPOJobSpec:
    return GRPOJobSpec.model_validate_json(text)


@lru_cache(maxsize=8)
def _read_templates(text: str) -> Mapping[str, KubeObject]:
    return _TEMPLATES.validate_json(text)


def _templates(snapshot: JobSnapshot) -> Mapping[str, KubeObject]:
    """The pod templates of this release that the run needs."""
    made: dict[str, KubeObject] = {Template.FIRST_TRAINER: trainer_template(snapshot, is_first=True)}
    if snapshot.spec.trainer.num_nodes > 1:
        made[Template.TRAINER] = trainer_template(snapshot, is_first=False)
    if snapshot.has_rollout:
        made[Template.ROLLOUT] = rollout_template(snapshot)
    if snapshot.nodes_per_engine > 1:
        made[Template.ROLLOUT_WORKER] = rollout_template(snapshot, is_first=False)
    return made
