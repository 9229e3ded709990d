"""Environment variables a pod of a job is given. Everything else it needs is in the RunConfig.

Precedence everywhere: spec, then RunConfig, then environment. A test proves that the operator writes
exactly these and that the runtime reads every one of them.
"""

from enum import StrEnum


class Env(StrEnum):
    """Names of the variables; the docstring under each says what its value is."""

    ROLE = "GRPO_ROLE"
    """`trainer` or `rollout`."""
    RUN_CONFIG = "GRPO_RUN_CONFIG"
    """Path of the RunConfig JSON file."""
    TOKENS_DIR = "GRPO_TOKENS_DIR"
    """Directory with the files `data-token` and `admin-token`. Trainers of mode Disaggregated and rollout
    pods only."""
    OUTPUT_DIR = "GRPO_OUTPUT_DIR"
    """Where a trainer writes metrics, TensorBoard files, checkpoints and the final model."""
    CACHE_DIR = "GRPO_CACHE_DIR"
    """Writable scratch space that is lost with the pod."""
    VOLUMES_DIR = "GRPO_VOLUMES_DIR"
    """Where the claims and ConfigMaps of model, dataset and rewards are mounted: `claims/NAME/` and
    `configmaps/NAME/`."""
    ATTEMPT = "GRPO_ATTEMPT"
    """Attempt of a trainer pod, from 1. Rollout pods outlive attempts and have none."""
    NODE_INDEX = "GRPO_NODE_INDEX"
    """Index of a trainer pod in its gang, from 0."""
    MASTER_ADDR = "GRPO_MASTER_ADDR"
    """Host name of trainer pod 0 of this attempt."""
    ROLLOUT_HOST = "GRPO_ROLLOUT_HOST"
    """Host name whose addresses are all rollout pods, ready or not. Trainers of mode Disaggregated only."""
    INSTANCE = "GRPO_INSTANCE"
    """Pod name: names a rollout engine in logs and in the fleet."""


TRAINER_ENV = frozenset(
    {Env.ROLE, Env.RUN_CONFIG, Env.TOKENS_DIR, Env.OUTPUT_DIR, Env.CACHE_DIR, Env.VOLUMES_DIR, Env.ATTEMPT,
     Env.NODE_INDEX, Env.MASTER_ADDR, Env.ROLLOUT_HOST}
)  # fmt: skip
"""Variables of a trainer pod that has rollout pods."""

COLOCATED_ENV = TRAINER_ENV - {Env.TOKENS_DIR, Env.ROLLOUT_HOST}
"""Variables of a trainer pod that holds its engines itself: there is nobody to talk to."""

ROLLOUT_ENV = frozenset(
    {Env.ROLE, Env.RUN_CONFIG, Env.TOKENS_DIR, Env.CACHE_DIR, Env.VOLUMES_DIR, Env.INSTANCE}
)
"""Variables of a rollout pod."""


class Role(StrEnum):
    """The two kinds of pods of a job."""

    TRAINER = "trainer"
    ROLLOUT = "rollout"
