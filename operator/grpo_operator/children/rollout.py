"""Rollout pods: one vLLM engine each, restarted in place when it ends and replaced when the pod is lost."""

from grpo_api.contract import endpoints, labels
from grpo_api.contract.environment import Env, Role
from grpo_operator.children.child import Child
from grpo_operator.children.frozen_job import FrozenJob
from grpo_operator.children.pod import given_back_label, http_probe, pod_template, resources
from grpo_operator.children.template import Open, Template, filled
from grpo_operator.cluster.kinds import PODS, KubeObject

GRACE_SECONDS = 30


def rollout_pod(frozen: FrozenJob, *, replica: int, incarnation: int, given_back: int = 0) -> Child:
    """The pod of a replica of a job that has rollout pods, from the template that the run started with;
    `incarnation` grows with each replacement, and `given_back` is how often the job has given its nodes
    back."""
    template = frozen.templates.get(Template.ROLLOUT) or rollout_template(frozen)
    values = {
        Open.NAME: frozen.names.rollout(replica=replica, incarnation=incarnation),
        Open.IMAGE: frozen.image,
        Open.REPLICA: str(replica),
    }
    own_labels = given_back_label(given_back)
    return Child(PODS, filled(template, values, labels=own_labels, grace_seconds=GRACE_SECONDS))


def rollout_template(frozen: FrozenJob) -> KubeObject:
    """What rollout pods are made from, in a job that has some."""
    assert frozen.spec.rollout is not None
    name = Open.NAME.value
    port = endpoints.ROLLOUT_PORT
    container: KubeObject = {
        "name": endpoints.ROLLOUT_CONTAINER,
        "command": ["grpo-runtime", "rollout"],
        "resources": resources(frozen.spec.rollout.resources),
        "ports": [{"name": "http", "containerPort": port}],
        "startupProbe": http_probe(endpoints.ROLLOUT_LIVE_PATH, port=port, period_seconds=2, failures=900),
        "livenessProbe": http_probe(endpoints.ROLLOUT_LIVE_PATH, port=port, period_seconds=10, failures=6),
        "readinessProbe": http_probe(endpoints.ROLLOUT_READY_PATH, port=port, period_seconds=2, failures=2),
    }
    return pod_template(
        frozen,
        metadata=frozen.metadata(name, role=Role.ROLLOUT, extra={labels.REPLICA: Open.REPLICA.value}),
        role=Role.ROLLOUT,
        container=container,
        restart_policy="Always",
        environment={Env.INSTANCE: name},
    )
