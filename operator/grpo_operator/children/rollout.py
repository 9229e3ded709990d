"""Rollout pods: one vLLM engine each, restarted in place when it ends and replaced when the pod is lost.

Where several make up one engine, none restarts alone: all of them are replaced.
"""

from grpo_api.contract import endpoints, labels
from grpo_api.contract.environment import Env, Role
from grpo_operator.children.child import Child
from grpo_operator.children.mounts import weights, weights_secrets
from grpo_operator.children.pod import (
    grace_seconds_of,
    http_probe,
    pod_from_template,
    pod_template,
    resources,
)
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.children.template import Open, Template
from grpo_operator.cluster.kinds import KubeObject

GRACE_SECONDS = 30


def rollout_pod(
    snapshot: JobSnapshot, *, replica: int, incarnation: int, node: int = 0, given_back: int = 0
) -> Child:
    """A pod of a replica of a job that has rollout pods, from the template that the run started with. `node`
    is its index among those that make up the engine, `incarnation` grows with each replacement, and
    `given_back` is how often the job has given its nodes back."""
    kind = Template.ROLLOUT if node == 0 else Template.ROLLOUT_WORKER
    template = snapshot.templates.get(kind) or rollout_template(snapshot, is_first=node == 0)
    values = {
        Open.NAME: snapshot.names.rollout(replica=replica, incarnation=incarnation, node=node),
        Open.IMAGE: snapshot.image,
        Open.REPLICA: str(replica),
        Open.INCARNATION: str(incarnation),
        Open.NODE_INDEX: str(node),
        Open.FIRST_ROLLOUT: snapshot.names.rollout(replica=replica, incarnation=incarnation),
    }
    grace_seconds = grace_seconds_of(snapshot.spec, role=Role.ROLLOUT) or GRACE_SECONDS
    return pod_from_template(
        snapshot, template, values, role=Role.ROLLOUT, grace_seconds=grace_seconds, given_back=given_back
    )


def rollout_template(snapshot: JobSnapshot, *, is_first: bool = True) -> KubeObject:
    """The template of rollout pods, in a job that has some. Of the pods of one engine only the first has a
    server; the others have workers, which meet at the first."""
    assert snapshot.spec.rollout is not None
    name, has_several = Open.NAME.value, snapshot.nodes_per_engine > 1
    own_labels = {labels.REPLICA: Open.REPLICA.value}
    container: KubeObject = {
        "name": endpoints.ROLLOUT_CONTAINER,
        "command": ["grpo-runtime", "rollout"],
        "resources": resources(snapshot.spec.rollout.resources),
        **(_server() if is_first else {}),
    }
    return pod_template(
        snapshot,
        metadata=snapshot.metadata(
            name,
            role=Role.ROLLOUT,
            extra=own_labels | ({labels.NODE_INDEX: Open.NODE_INDEX.value} if has_several else {}),
        ),
        role=Role.ROLLOUT,
        container=container,
        restart_policy="Never" if has_several else "Always",
        environment={Env.INSTANCE: name, **(_node_environment(snapshot) if has_several else {})},
        mounts=[*weights(snapshot, is_writer=False), *weights_secrets(snapshot)],
    )


def _server() -> KubeObject:
    port = endpoints.ROLLOUT_PORT
    return {
        "ports": [{"name": "http", "containerPort": port}],
        "startupProbe": http_probe(endpoints.ROLLOUT_LIVE_PATH, port=port, period_seconds=2, failures=900),
        "livenessProbe": http_probe(endpoints.ROLLOUT_LIVE_PATH, port=port, period_seconds=10, failures=6),
        "readinessProbe": http_probe(endpoints.ROLLOUT_READY_PATH, port=port, period_seconds=2, failures=2),
    }


def _node_environment(snapshot: JobSnapshot) -> dict[Env, str]:
    return {
        Env.NODES_PER_REPLICA: str(snapshot.nodes_per_engine),
        Env.NODE_INDEX: Open.NODE_INDEX.value,
        Env.MASTER_ADDR: f"{Open.FIRST_ROLLOUT.value}.{snapshot.names.service(Role.ROLLOUT)}",
    }
