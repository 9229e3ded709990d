"""Environment variables of a job's pods. Everything else that a pod needs is in the RunConfig.

A test shows that the operator sets exactly these variables, and that the runtime reads every one of them.
"""

from enum import StrEnum


class Env(StrEnum):
    """Names of the variables; the text under each describes its value."""

    ROLE = "GRPO_ROLE"
    """`trainer` or `rollout`."""
    RUN_CONFIG = "GRPO_RUN_CONFIG"
    """Path of the RunConfig JSON file."""
    RUN_CONFIG_DIGEST = "GRPO_RUN_CONFIG_DIGEST"
    """SHA-256 of that file, in hex, as the operator made it. A process does not begin with another file."""
    TOKENS_DIR = "GRPO_TOKENS_DIR"
    """Directory with the files `data-token` and `admin-token`. Only rollout pods have it, and trainers of
    mode Disaggregated or with Ray."""
    OUTPUT_DIR = "GRPO_OUTPUT_DIR"
    """Directory where a trainer writes metrics, TensorBoard files, checkpoints and the final model."""
    CACHE_DIR = "GRPO_CACHE_DIR"
    """Writable scratch space that is lost with the pod."""
    VOLUMES_DIR = "GRPO_VOLUMES_DIR"
    """Directory where the claims and ConfigMaps of model, dataset and rewards are mounted, as `claims/NAME/`
    and `configmaps/NAME/`."""
    ATTEMPT = "GRPO_ATTEMPT"
    """Number of a trainer pod's attempt, from 1. Rollout pods do not belong to an attempt."""
    NODE_INDEX = "GRPO_NODE_INDEX"
    """Index of a trainer pod among those of its attempt, or of a rollout pod among those of its engine, from
    0. A rollout pod that is the whole engine has none."""
    MASTER_ADDR = "GRPO_MASTER_ADDR"
    """Where the training processes meet: the host name of trainer pod 0 of this attempt, or the loopback
    address where there is no other trainer pod. In rollout pods that make up one engine, the host name of the
    first of them, where their workers meet."""
    NODES_PER_REPLICA = "GRPO_NODES_PER_REPLICA"
    """How many rollout pods make up one engine, where they are several; other pods do not have it."""
    ROLLOUT_HOST = "GRPO_ROLLOUT_HOST"
    """Host name that resolves to the addresses of all rollout pods, ready or not. Only trainers of mode
    Disaggregated have it."""
    ROLLOUT_REPLICAS = "GRPO_ROLLOUT_REPLICAS"
    """Number of rollout engines that this attempt waits for: those asked for when its pods were made. It
    replaces `topology.rolloutReplicas` of the RunConfig, which is from the start of the job. Only trainers of
    mode Disaggregated have it."""
    MICRO_BATCH_TOKENS = "GRPO_MICRO_BATCH_TOKENS"
    """Most tokens of a micro-batch in this attempt. It replaces `microBatchTokens` of the RunConfig. Only
    trainers of a job that has run out of GPU memory have it."""
    CHECKPOINT_STEP = "GRPO_CHECKPOINT_STEP"
    """Step of the highest checkpoint that the job has saved to its claim: an attempt does not begin below it.
    Only trainers of a job that has saved one have it."""
    STALL_TIMEOUT_SECONDS = "GRPO_STALL_TIMEOUT_SECONDS"
    """`stallTimeoutSeconds` as it was when the pod was made. A trainer that nobody asks for its progress
    observes it by itself. Only trainer pods have it; `grpo-runtime run` does not set it, and observes the
    limit itself."""
    STARTUP_DEADLINE_SECONDS = "GRPO_STARTUP_DEADLINE_SECONDS"
    """`startupDeadlineSeconds` as it was when the pod was made. A trainer that gives no sign of life before
    its first step observes it by itself. Only trainer pods have it."""
    HEARTBEAT_FILE = "GRPO_HEARTBEAT_FILE"
    """File that the supervisor of a trainer pod touches every few seconds, for the liveness probe."""
    INSTANCE = "GRPO_INSTANCE"
    """Name of a rollout pod, which is the engine's name in logs and messages."""


TRAINER_ENV = frozenset(
    {Env.ROLE, Env.RUN_CONFIG, Env.RUN_CONFIG_DIGEST, Env.TOKENS_DIR, Env.OUTPUT_DIR, Env.CACHE_DIR,
     Env.VOLUMES_DIR, Env.ATTEMPT, Env.NODE_INDEX, Env.MASTER_ADDR, Env.ROLLOUT_HOST, Env.ROLLOUT_REPLICAS,
     Env.HEARTBEAT_FILE}
)  # fmt: skip
"""Variables of a trainer pod in mode Disaggregated."""

COLOCATED_ENV = TRAINER_ENV - {Env.TOKENS_DIR, Env.ROLLOUT_HOST, Env.ROLLOUT_REPLICAS}
"""Variables of a trainer pod in mode Colocated, where the engines are in its own processes."""

RAY_ENV = COLOCATED_ENV | {Env.TOKENS_DIR}
"""Variables of a trainer pod in mode Colocated whose engines are actors of Ray."""

LATER_TRAINER_ENV = frozenset({Env.MICRO_BATCH_TOKENS, Env.CHECKPOINT_STEP})
"""Additional variables of a trainer pod once an attempt has run out of GPU memory, and once one has saved."""

LIMITS_ENV = frozenset({Env.STALL_TIMEOUT_SECONDS, Env.STARTUP_DEADLINE_SECONDS})
"""Additional variables of a trainer pod that the trainers of `grpo-runtime run` do not have."""

ROLLOUT_ENV = frozenset(
    {
        Env.ROLE,
        Env.RUN_CONFIG,
        Env.RUN_CONFIG_DIGEST,
        Env.TOKENS_DIR,
        Env.CACHE_DIR,
        Env.VOLUMES_DIR,
        Env.INSTANCE,
    }
)
"""Variables of a rollout pod."""

NODE_OF_ENGINE_ENV = frozenset({Env.NODE_INDEX, Env.MASTER_ADDR, Env.NODES_PER_REPLICA})
"""Additional variables of a rollout pod where several make up one engine."""


class Role(StrEnum):
    """The two kinds of pods of a job."""

    TRAINER = "trainer"
    ROLLOUT = "rollout"
