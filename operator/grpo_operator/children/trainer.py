"""Trainer pods: the supervisor with its training processes. A pod never restarts alone: all of them do."""

from grpo_api.contract import endpoints, labels
from grpo_api.contract.environment import Env, Role
from grpo_api.contract.graces import RANKS_GRACE_SECONDS, TRAINER_GRACE_SECONDS
from grpo_operator.children.child import Child
from grpo_operator.children.frozen_job import FrozenJob
from grpo_operator.children.mounts import Mount
from grpo_operator.children.pod import OUTPUT_DIR, given_back_label, http_probe, pod, resources
from grpo_operator.cluster.kinds import PODS, KubeObject


def trainer_pod(frozen: FrozenJob, *, attempt: int, index: int, given_back: int = 0) -> Child:
    """Trainer pod `index` of an attempt; index 0 hosts the rendezvous and mounts the claim. `given_back` is
    how often the job has given its nodes back."""
    names = frozen.names
    name = names.trainer(attempt=attempt, index=index)
    metadata = frozen.metadata(
        name,
        role=Role.TRAINER,
        extra={
            labels.ATTEMPT: str(attempt),
            labels.NODE_INDEX: str(index),
            **given_back_label(given_back),
        },
    )
    path, port = endpoints.TRAINER_HEALTH_PATH, endpoints.TRAINER_PORT
    container: KubeObject = {
        "name": endpoints.TRAINER_CONTAINER,
        "command": ["grpo-runtime", "trainer", f"--grace-seconds={RANKS_GRACE_SECONDS}"],
        "resources": resources(frozen.spec.trainer.resources),
        "ports": [
            {"name": "http", "containerPort": endpoints.TRAINER_PORT},
            {"name": "rendezvous", "containerPort": endpoints.RENDEZVOUS_PORT},
        ],
        "startupProbe": http_probe(path, port=port, period_seconds=2, failures=150),
        "livenessProbe": http_probe(path, port=port, period_seconds=10, failures=6),
        "readinessProbe": http_probe(path, port=port, period_seconds=5, failures=3),
    }
    return Child(
        PODS,
        pod(
            frozen,
            metadata=metadata,
            role=Role.TRAINER,
            container=container,
            restart_policy="Never",
            grace_seconds=TRAINER_GRACE_SECONDS,
            environment={
                Env.OUTPUT_DIR: OUTPUT_DIR,
                Env.ATTEMPT: str(attempt),
                Env.NODE_INDEX: str(index),
                Env.MASTER_ADDR: f"{names.trainer(attempt=attempt, index=0)}.{names.service(Role.TRAINER)}",
                **({Env.ROLLOUT_HOST: names.service(Role.ROLLOUT)} if frozen.has_rollout else {}),
            },
            mounts=[_output(frozen, is_first=index == 0)],
        ),
    )


def _output(frozen: FrozenJob, *, is_first: bool) -> Mount:
    """The output directory: the claim for pod 0, a folder per job in it, and scratch space for the others."""
    claim = frozen.spec.checkpoint.claim_name
    if claim is None or not is_first:
        return Mount("output", OUTPUT_DIR, {"emptyDir": {}})
    return Mount("output", OUTPUT_DIR, claim=claim, sub_path=frozen.names.base)
