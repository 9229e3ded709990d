"""Trainer pods: the supervisor with its training processes. A pod never restarts alone: all of them do."""

from grpo_api.contract import endpoints, labels
from grpo_api.contract.endpoints import HEARTBEAT_FILE, HEARTBEAT_STALE_SECONDS
from grpo_api.contract.environment import Env, Role
from grpo_api.contract.graces import estimated_save_seconds, ranks_grace_seconds, trainer_grace_seconds
from grpo_operator.children.child import Child
from grpo_operator.children.mounts import Mount, resumed, secrets, weights
from grpo_operator.children.pod import (
    OUTPUT_DIR,
    grace_seconds_of,
    http_probe,
    pod_from_template,
    pod_template,
    resources,
)
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.children.template import Open, Template
from grpo_operator.cluster.kinds import KubeObject

_LOOPBACK = "127.0.0.1"


def trainer_pod(
    snapshot: JobSnapshot,
    *,
    attempt: int,
    index: int,
    given_back: int = 0,
    micro_batch_tokens: int | None = None,
    checkpoint_step: int | None = None,
    checkpoint_seconds: int | None = None,
    has_saved: bool = False,
    num_engines: int | None = None,
) -> Child:
    """Trainer pod `index` of an attempt, from the template that the run started with. `given_back` is how
    often the job has given its nodes back, `micro_batch_tokens` its budget of tokens once that is
    lowered, and `checkpoint_step` the step of the highest checkpoint on its claim, once there is one.
    `checkpoint_seconds` is how long its newest save took, if that was long; a job that `has_saved` and
    has none saves fast. `num_engines` is how many engines it waits for, if not for all."""
    estimated = None if has_saved else estimated_save_seconds(snapshot.spec)
    grace_seconds = trainer_grace_seconds(
        checkpoint_seconds,
        estimated_seconds=estimated,
        asked=grace_seconds_of(snapshot.spec, role=Role.TRAINER),
    )
    kind = Template.FIRST_TRAINER if index == 0 else Template.TRAINER
    template = snapshot.templates.get(kind) or trainer_template(snapshot, is_first=index == 0)
    values = {
        Open.NAME: snapshot.names.trainer(attempt=attempt, index=index),
        Open.IMAGE: snapshot.image,
        Open.ATTEMPT: str(attempt),
        Open.NODE_INDEX: str(index),
        Open.FIRST_TRAINER: snapshot.names.trainer(attempt=attempt, index=0),
        Open.RANKS_GRACE: str(ranks_grace_seconds(grace_seconds)),
        Open.ROLLOUT_REPLICAS: str(snapshot.num_engines if num_engines is None else num_engines),
    }
    pod = pod_from_template(
        snapshot, template, values, role=Role.TRAINER, grace_seconds=grace_seconds, given_back=given_back
    )
    # not open in the template: a job has them later, if at all
    later = {Env.MICRO_BATCH_TOKENS: micro_batch_tokens, Env.CHECKPOINT_STEP: checkpoint_step}
    # not open either: they may change between two attempts
    limits = {
        Env.STALL_TIMEOUT_SECONDS: snapshot.spec.stall_timeout_seconds,
        Env.STARTUP_DEADLINE_SECONDS: snapshot.spec.startup_deadline_seconds,
    }
    [container] = pod.body["spec"]["containers"]
    container["env"] += [
        {"name": name.value, "value": str(value)}
        for name, value in (limits | later).items()
        if value is not None
    ]
    return pod


def needs_service(snapshot: JobSnapshot) -> bool:
    """Whether the trainer pods of a run find each other by name. The processes of a single pod meet inside
    it."""
    return snapshot.spec.trainer.num_nodes > 1


def trainer_template(snapshot: JobSnapshot, *, is_first: bool) -> KubeObject:
    """The template of trainer pods. The first hosts the rendezvous, mounts the claim and uploads the
    model."""
    service, has_others = snapshot.names.service(Role.TRAINER), needs_service(snapshot)
    metadata = snapshot.metadata(
        Open.NAME.value,
        role=Role.TRAINER,
        extra={labels.ATTEMPT: Open.ATTEMPT.value, labels.NODE_INDEX: Open.NODE_INDEX.value},
    )
    of_first = (
        [*resumed(snapshot), *secrets(snapshot), *weights(snapshot, is_writer=True)] if is_first else []
    )
    container: KubeObject = {
        "name": endpoints.TRAINER_CONTAINER,
        "command": ["grpo-runtime", "trainer", f"--grace-seconds={Open.RANKS_GRACE.value}"],
        "resources": resources(snapshot.spec.trainer.resources),
        "ports": [
            {"name": "http", "containerPort": endpoints.TRAINER_PORT},
            {"name": "rendezvous", "containerPort": endpoints.RENDEZVOUS_PORT},
        ],
        "livenessProbe": _liveness_probe(),
        "readinessProbe": http_probe(
            endpoints.TRAINER_HEALTH_PATH, port=endpoints.TRAINER_PORT, period_seconds=5, failures=3
        ),
    }
    return pod_template(
        snapshot,
        metadata=metadata,
        role=Role.TRAINER,
        container=container,
        restart_policy="Never",
        environment={
            Env.OUTPUT_DIR: OUTPUT_DIR,
            Env.ATTEMPT: Open.ATTEMPT.value,
            Env.NODE_INDEX: Open.NODE_INDEX.value,
            Env.MASTER_ADDR: f"{Open.FIRST_TRAINER.value}.{service}" if has_others else _LOOPBACK,
            Env.HEARTBEAT_FILE: HEARTBEAT_FILE,
            **_rollout_environment(snapshot),
        },
        mounts=[_output(snapshot, is_first=is_first), *of_first],
        is_found_by_name=has_others,
    )


def _liveness_probe() -> KubeObject:
    """Ends a pod whose supervisor hangs. Looks at the supervisor's heartbeat file inside the pod, because a
    failed probe ends the attempt, and a port can be flooded.

    Without a file the probe succeeds: the runtime has not begun yet. It runs the shell and coreutils, which
    takes milliseconds.
    """
    script = (
        f'beat=$(stat -c %Y "${Env.HEARTBEAT_FILE}" 2>/dev/null) || exit 0; age=$(($(date +%s) - beat)); '
        f'[ "$age" -lt {HEARTBEAT_STALE_SECONDS} ] || {{ echo "the supervisor gave no sign of life for '
        '$age s"; exit 1; }'
    )
    return {
        "exec": {"command": ["sh", "-c", script]},
        "periodSeconds": 20,
        "failureThreshold": 3,
        "timeoutSeconds": 10,
    }


def _rollout_environment(snapshot: JobSnapshot) -> dict[Env, str]:
    """Where the engines are, and how many the attempt waits for: `kubectl scale` may have changed that since
    the RunConfig was made."""
    if not snapshot.has_rollout:
        return {}
    return {
        Env.ROLLOUT_HOST: snapshot.names.service(Role.ROLLOUT),
        Env.ROLLOUT_REPLICAS: Open.ROLLOUT_REPLICAS.value,
    }


def _output(snapshot: JobSnapshot, *, is_first: bool) -> Mount:
    """The output directory: the claim for pod 0, a folder per job in it, and scratch space for the others,
    which have the claim too where the user says that it is shared."""
    checkpoint = snapshot.spec.checkpoint
    claim = checkpoint.claim_name
    if claim is None or not (is_first or checkpoint.shared):
        return Mount("output", OUTPUT_DIR, {"emptyDir": {}})
    return Mount("output", OUTPUT_DIR, claim=claim, sub_path=snapshot.names.base)
