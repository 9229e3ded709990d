"""`algorithm`: GRPO and its numbers."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from grpo_api.model import ApiModel
from grpo_api.rule import rule


class LossType(StrEnum):
    """How token losses are averaged."""

    DAPO = "dapo"
    GRPO = "grpo"


class ScaleRewards(StrEnum):
    """Whose standard deviation advantages are divided by."""

    GROUP = "group"
    BATCH = "batch"
    NONE = "none"


class ImportanceCorrectionMode(StrEnum):
    """What happens to a token whose ratio of trainer to sampler probability leaves the bounds."""

    TRUNCATE = "truncate"
    MASK = "mask"
    NONE = "none"


class ImportanceCorrectionSpec(ApiModel):
    """Correction for the difference between the trainer's and the engine's probabilities, per token."""

    mode: ImportanceCorrectionMode = ImportanceCorrectionMode.TRUNCATE
    """`truncate` clamps the ratio to the bounds, `mask` drops tokens outside them, `none` ignores it."""
    floor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Lower bound of the ratio."""
    cap: Annotated[float, Field(ge=1, le=1000)] = 2.0
    """Upper bound of the ratio."""


class Schedule(StrEnum):
    """How the learning rate moves after warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class OptimizerSpec(ApiModel):
    """AdamW and its schedule."""

    learning_rate: Annotated[float, Field(gt=0, le=1)] = 1e-6
    """Peak learning rate."""
    schedule: Schedule = Schedule.CONSTANT
    """`constant`, or `linear` or `cosine` down to zero at the last step."""
    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Steps of linear warm-up from zero."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    """AdamW's decoupled weight decay."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the first moment."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay of the second moment."""
    max_grad_norm: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    """Gradients are clipped to this global norm."""


@rule(
    cel="self.optimizer.warmupSteps <= self.steps",
    sentence="optimizer.warmupSteps ({optimizer.warmupSteps}) must not exceed algorithm.steps ({steps}): "
    "lower it or train longer",
    field=".optimizer.warmupSteps",
)
def warmup_ends(optimizer: OptimizerSpec, steps: int) -> bool:
    """The warm-up ends before the run does."""
    return optimizer.warmup_steps <= steps


class AlgorithmSpec(ApiModel):
    """GRPO and its numbers."""

    rules = (warmup_ends,)

    steps: Annotated[int, Field(ge=1, le=10_000_000)]
    """Optimizer phases: each generates, scores and trains once."""
    prompts_per_step: Annotated[int, Field(ge=1, le=65_536)] = 16
    """Different prompts in a step."""
    group_size: Annotated[int, Field(ge=2, le=4096)] = 8
    """Completions for each prompt; advantages are relative to this group."""
    loss_type: LossType = LossType.DAPO
    """`dapo` divides by all tokens of the step, `grpo` averages each sequence first."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The policy ratio is clipped below at 1 - clipLow."""
    clip_high: Annotated[float, Field(gt=0, le=100)] = 0.2
    """The policy ratio is clipped above at 1 + clipHigh."""
    scale_rewards: ScaleRewards = ScaleRewards.GROUP
    """Divide advantages by the standard deviation of the group, of the batch, or not at all."""
    num_iterations: Annotated[int, Field(ge=1, le=64)] = 1
    """Optimizer updates on each batch of rollouts."""
    importance_correction: ImportanceCorrectionSpec = ImportanceCorrectionSpec()
    """Correction for the engine's probabilities differing from the trainer's."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """AdamW and its schedule."""
    seed: Annotated[int, Field(ge=0, le=2_147_483_647)] = 0
    """Everything random in the run derives from this."""
