"""`algorithm`: GRPO and its numbers."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from grpo_api.model import NOT_STORED, ApiModel
from grpo_api.rule import rule
from grpo_api.v1alpha1.spec.entropy import EntropySpec
from grpo_api.v1alpha1.spec.loss import (
    LOSS_RULES,
    Aggregation,
    Baseline,
    ImportanceCorrectionSpec,
    KLSpec,
    LossType,
    RatioLevel,
    RefSyncSpec,
    ScaleRewards,
)


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


class DynamicSamplingSpec(ApiModel):
    """DAPO's dynamic sampling: groups whose completions all have the same reward teach nothing, are dropped,
    and prompts that come next are sampled in their place."""

    max_rounds: Annotated[int, Field(ge=2, le=64), NOT_STORED] = 10
    """How often a step samples at most; 10 if it is left out, as verl has for DAPO. Then it is trained on the
    groups that it has, fewer than promptsPerStep; where it has none it teaches nothing."""


@rule(
    cel="!has(self.dynamicSampling) || !has(self.kl) || self.kl.beta == 0.0",
    sentence="algorithm.dynamicSampling drops groups whose rewards are equal, for which algorithm.kl.beta "
    "counts too: the policy would leave the reference where it is always right. Remove one of them",
    field=".dynamicSampling",
)
def dropped_groups_have_no_penalty(dynamic_sampling: DynamicSamplingSpec | None, kl: KLSpec | None) -> bool:
    """Without a penalty a group of equal rewards changes nothing."""
    return dynamic_sampling is None or kl is None or kl.beta == 0


@rule(
    cel="has(self.steps) != has(self.epochs)",
    sentence="algorithm needs exactly one of steps and epochs: set one and remove the other",
)
def has_one_length(steps: int | None, epochs: float | None) -> bool:
    """A run is so many steps long, or so many epochs."""
    return (steps is None) != (epochs is None)


@rule(
    cel="!has(self.epochs) || !has(self.dynamicSampling)",
    sentence="with algorithm.dynamicSampling nobody knows how many prompts a step takes, so that "
    "algorithm.epochs are no number of steps: set algorithm.steps in place of epochs",
    field=".epochs",
)
def epochs_are_a_number_of_steps(epochs: float | None, dynamic_sampling: DynamicSamplingSpec | None) -> bool:
    """Each step takes promptsPerStep prompts."""
    return epochs is None or dynamic_sampling is None


@rule(
    cel="!has(self.steps) || self.optimizer.warmupSteps <= self.steps",
    sentence="optimizer.warmupSteps ({optimizer.warmupSteps}) must not exceed algorithm.steps ({steps}): "
    "lower it or train longer",
    field=".optimizer.warmupSteps",
)
def warmup_ends(optimizer: OptimizerSpec, steps: int | None) -> bool:
    """The warm-up ends before the run does. How many steps epochs are, the trainer knows."""
    return steps is None or optimizer.warmup_steps <= steps


@rule(
    cel="!has(self.minibatches) || self.promptsPerStep % self.minibatches == 0",
    sentence="algorithm.minibatches ({minibatches}) must divide algorithm.promptsPerStep ({promptsPerStep}), "
    "because a minibatch has whole groups: set one of them so that it does",
    field=".minibatches",
)
def minibatches_have_whole_groups(minibatches: int, prompts_per_step: int) -> bool:
    """No group is in two of them, and all have as many groups."""
    return prompts_per_step % minibatches == 0


class AlgorithmSpec(ApiModel):
    """GRPO and its numbers."""

    rules = (
        has_one_length,
        epochs_are_a_number_of_steps,
        warmup_ends,
        minibatches_have_whole_groups,
        dropped_groups_have_no_penalty,
        *LOSS_RULES,
    )

    steps: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Optimizer phases: each generates, scores and trains once. It or `epochs` is needed."""
    epochs: Annotated[float, Field(gt=0, le=100_000)] | None = None
    """In place of `steps`: how often every prompt has its turn, TRL's `num_train_epochs`. The trainer counts
    the prompts; the last step may begin another epoch."""
    prompts_per_step: Annotated[int, Field(ge=1, le=65_536)] = 16
    """Different prompts in a step."""
    group_size: Annotated[int, Field(ge=2, le=4096)] = 8
    """Completions for each prompt; advantages are relative to this group."""
    loss_type: LossType = LossType.DAPO
    """TRL's `loss_type`. With PPO's clipped ratio: `dapo` divides by all tokens of the step, `grpo` averages
    each sequence first, `bnpo` averages the tokens of each micro-batch first, so that it depends on
    `trainer.microBatchTokens` and on the number of processes, `dr_grpo` divides by the sequences times
    `sampling.maxTokens`, `luspo` sums each sequence. `cispo` weighs tokens by a capped ratio without clipping
    their gradient, `sapo` has a soft gate in place of the clip, `vespo` weighs whole sequences."""
    ratio_level: RatioLevel | None = None
    """TRL's `importance_sampling_level`: one policy ratio for each token, or one for each sequence, which
    with lossType grpo is GSPO. Without it `token`, and `sequence` for lossType luspo."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The policy ratio is clipped below at 1 - clipLow; TRL's `epsilon`. Not for cispo, sapo and vespo."""
    clip_high: Annotated[float, Field(gt=0, le=100)] | None = None
    """The policy ratio is clipped above at 1 + clipHigh; TRL's `epsilon_high`. Without it 0.2. For lossType
    cispo it is the cap of the ratio itself, and without it 5. Not with sapo and vespo."""
    delta: Annotated[float, Field(gt=1, le=1000)] | None = None
    """Two-sided clip: where the advantage is negative the ratio counts at most so much; above 1 +
    clipHigh."""
    dual_clip: Annotated[float, Field(gt=1, le=1000)] | None = None
    """Dual clip (verl's `clip_ratio_c`): where the advantage is negative a token loses at most so many times
    it."""
    sapo_temperature_pos: Annotated[float, Field(gt=0, le=1000)] | None = None
    """How fast sapo's gate closes where the advantage is positive; without it 1."""
    sapo_temperature_neg: Annotated[float, Field(gt=0, le=1000)] | None = None
    """How fast sapo's gate closes elsewhere; without it 1.05."""
    vespo_k_pos: Annotated[float, Field(ge=0, le=1000)] | None = None
    """Exponent of vespo's weight where the advantage is not negative; without it 2."""
    vespo_lambda_pos: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Decay of vespo's weight where the advantage is not negative; without it 3."""
    vespo_k_neg: Annotated[float, Field(ge=0, le=1000)] | None = None
    """Exponent of vespo's weight where the advantage is negative; without it 3."""
    vespo_lambda_neg: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Decay of vespo's weight where the advantage is negative; without it 2."""
    top_entropy_quantile: Annotated[float, Field(gt=0, le=1)] | None = None
    """Only this share of the step's tokens, those with the highest entropy, carries the policy term. It costs
    one more forward pass for each update. Without it all tokens do."""
    off_policy_threshold: Annotated[float, Field(gt=0, le=1000)] | None = None
    """TRL's `off_policy_mask_threshold`: completions of negative advantage that are this far (mean nats a
    token) from the engine that sampled them teach nothing. Without it all teach. Not with what changes the
    engine's probabilities: `sampling.topP`, `topK`, `minP`, `repetitionPenalty` and `regex`."""
    mask_truncated: Annotated[bool, NOT_STORED] = False
    """TRL's `mask_truncated_completions`: whether completions that were cut at `sampling.maxTokens` are left
    out of the loss. They stay in the advantages of their group."""
    scale_rewards: ScaleRewards = ScaleRewards.GROUP
    """Divide advantages by the standard deviation of the group, of the batch, or not at all."""
    aggregation: Annotated[Aggregation, NOT_STORED] = Aggregation.SUM_THEN_NORMALIZE
    """TRL's `multi_objective_aggregation`. `sum_then_normalize`, as without it, normalises the weighted sum
    of the rewards; `normalize_then_sum` is GDPO: it normalises each reward in its group before the sum."""
    baseline: Annotated[Baseline, NOT_STORED] = Baseline.GROUP_MEAN
    """`group_mean`, as without it, compares a completion with the mean of its group; `leave_one_out` (RLOO)
    with the mean of the others in it."""
    dynamic_sampling: DynamicSamplingSpec | None = None
    """Sample other prompts in place of those whose completions all have the same reward. Without it a step
    is trained on what it samples first."""
    kl: KLSpec | None = None
    """A penalty for leaving the reference policy. Without it there is neither."""
    entropy: EntropySpec | None = None
    """A bonus for the entropy of the policy. Without it entropy is only reported."""
    num_iterations: Annotated[int, Field(ge=1, le=64)] = 1
    """How many times each batch of rollouts is trained on, with an optimizer update for each of its
    `minibatches`. The learning rate is that of the step, however many updates it has."""
    minibatches: Annotated[int, Field(ge=1, le=65_536), NOT_STORED] = 1
    """Divide each batch of rollouts into so many minibatches of whole groups, drawn by the seed, with an
    optimizer update for each; it must divide `promptsPerStep`. The policy ratio and the correction for the
    engine are towards the policy before the first of these updates, and what the loss divides by is counted
    in the minibatch. In verl's terms `ppo_mini_batch_size` is promptsPerStep / minibatches. Without it 1."""
    importance_correction: ImportanceCorrectionSpec = ImportanceCorrectionSpec()
    """Correction for the engine's probabilities differing from the trainer's."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """AdamW and its schedule."""
    max_non_finite_steps: Annotated[int, Field(ge=1, le=1_000_000), NOT_STORED] = 3
    """An update whose gradient is not finite (NaN or infinite) is left out, and weights and optimizer stay as
    they are. After so many steps in a row without any update the job fails. Without it 3."""
    seed: Annotated[int, Field(ge=0, le=2_147_483_647)] = 0
    """Everything random in the run derives from this."""

    @property
    def has_entropy_bonus(self) -> bool:
        """Whether the entropy of the policy has a part in the loss."""
        return self.entropy is not None and self.entropy.has_bonus

    @property
    def has_reference(self) -> bool:
        """Whether there is a reference policy."""
        return self.kl is not None and self.kl.beta > 0

    @property
    def ref_sync(self) -> RefSyncSpec | None:
        """How the reference policy follows; None where there is none or it stays."""
        return self.kl.ref_sync if self.kl is not None and self.has_reference else None
