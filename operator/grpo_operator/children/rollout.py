"""Rollout pods: one vLLM engine each, restarted in place when it ends and replaced when the pod is lost."""

from grpo_api.contract import endpoints, labels
from grpo_api.contract.environment import Env, Role
from grpo_operator.children.pod import http_probe, pod, resources
from grpo_operator.children.run import Child, Run
from grpo_operator.kinds import PODS, Manifest

GRACE_SECONDS = 30


def rollout_pod(run: Run, *, replica: int, incarnation: int) -> Child:
    """The pod of a replica of a run that has rollout pods; `incarnation` grows with each replacement."""
    assert run.spec.rollout is not None
    name = run.names.rollout(replica=replica, incarnation=incarnation)
    port = endpoints.ROLLOUT_PORT
    container: Manifest = {
        "name": endpoints.ROLLOUT_CONTAINER,
        "command": ["grpo-runtime", "rollout"],
        "resources": resources(run.spec.rollout.resources),
        "ports": [{"name": "http", "containerPort": port}],
        "startupProbe": http_probe(endpoints.ROLLOUT_LIVE_PATH, port=port, period_seconds=2, failures=900),
        "livenessProbe": http_probe(endpoints.ROLLOUT_LIVE_PATH, port=port, period_seconds=10, failures=6),
        "readinessProbe": http_probe(endpoints.ROLLOUT_READY_PATH, port=port, period_seconds=2, failures=2),
    }
    return Child(
        PODS,
        pod(
            run,
            metadata=run.metadata(name, role=Role.ROLLOUT, extra={labels.REPLICA: str(replica)}),
            role=Role.ROLLOUT,
            container=container,
            restart_policy="Always",
            grace_seconds=GRACE_SECONDS,
            environment={Env.INSTANCE: name},
        ),
    )
