"""`algorithm`: GRPO and its numbers."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from grpo_api.model import NOT_STORED, ApiModel
from grpo_api.rule import rule
from grpo_api.v1alpha1.spec.loss import (
    LOSS_RULES,
    Aggregation,
    Baseline,
    EntropySpec,
    GeometricMaskSpec,
    ImportanceCorrectionSpec,
    KLSpec,
    LossType,
    RatioLevel,
    RefSyncSpec,
    ScaleRewards,
    TrustRegionMaskSpec,
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
    """How the learning rate moves after the warm-up: `constant` stays at the peak, `linear` and `cosine` fall
    to zero at the last step."""
    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Steps in which the learning rate rises linearly from zero to its peak."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    """AdamW's decoupled weight decay."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """AdamW's decay of the first moment."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """AdamW's decay of the second moment."""
    max_grad_norm: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    """Gradients are clipped to this global norm."""


class DynamicSamplingSpec(ApiModel):
    """DAPO's dynamic sampling: groups whose completions all have the same reward teach nothing, are filtered
    out, and the next prompts are sampled instead."""

    max_rounds: Annotated[int, Field(ge=2, le=64), NOT_STORED] = 10
    """How many times a step samples at most. Defaults to 10, as in verl's DAPO. After the last round the step
    is trained on the groups that it has, which are fewer than promptsPerStep; if it has none, it trains
    nothing. With `async` that is once maxRounds x promptsPerStep prompts were filtered out since the step
    before."""


@rule(
    cel="!has(self.dynamicSampling) || !has(self.kl) || self.kl.beta == 0.0",
    sentence="algorithm.dynamicSampling leaves out groups whose rewards are equal, and their KL penalty with "
    "them, so the policy could leave the reference where it is always right: remove "
    "algorithm.dynamicSampling or algorithm.kl",
    field=".dynamicSampling",
)
def filtered_groups_have_no_penalty(dynamic_sampling: DynamicSamplingSpec | None, kl: KLSpec | None) -> bool:
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
    sentence="algorithm.epochs does not work with algorithm.dynamicSampling, because how many prompts a "
    "step takes is not known before: set algorithm.steps in place of epochs",
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
    sentence="algorithm.minibatches ({minibatches}) must divide algorithm.promptsPerStep "
    "({promptsPerStep}), because a minibatch has whole groups: change one of them",
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
        filtered_groups_have_no_penalty,
        *LOSS_RULES,
    )

    steps: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """How many steps to train. Each step samples, scores and trains once. Set either this or `epochs`."""
    epochs: Annotated[float, Field(gt=0, le=100_000)] | None = None
    """How many times to train on every prompt, in place of `steps`; TRL's `num_train_epochs`. The trainer
    counts the prompts, and the last step may reach into another epoch."""
    prompts_per_step: Annotated[int, Field(ge=1, le=65_536)] = 16
    """How many different prompts a step has."""
    group_size: Annotated[int, Field(ge=2, le=4096)] = 8
    """How many completions are sampled for each prompt. They are its group, within which advantages are
    computed."""
    loss_type: LossType = LossType.DAPO
    """TRL's `loss_type`. These have PPO's clipped ratio: `dapo` divides by all tokens of the step; `grpo`
    averages each sequence first; `bnpo` averages the tokens of each micro-batch first, so that it depends on
    `trainer.microBatchTokens` and on the number of processes; `dr_grpo` divides by the number of sequences
    times `sampling.maxTokens`; `luspo` sums each sequence. These have not: `cispo` weighs tokens by a capped
    ratio without clipping their gradient; `sapo` has a soft gate in place of the clip; `vespo` weighs whole
    sequences."""
    ratio_level: RatioLevel | None = None
    """What has a policy ratio: each `token`, or each `sequence`, which with lossType grpo is GSPO; TRL's
    `importance_sampling_level`. Defaults to `token`, and to `sequence` with lossType luspo."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The policy ratio is clipped below at 1 - clipLow; TRL's `epsilon`. The losses cispo, sapo and vespo do
    not use it."""
    clip_high: Annotated[float, Field(gt=0, le=100)] | None = None
    """The policy ratio is clipped above at 1 + clipHigh; TRL's `epsilon_high`. Defaults to 0.2. With lossType
    cispo it is the cap of the ratio itself, and defaults to 5. Not with sapo and vespo."""
    delta: Annotated[float, Field(gt=1, le=1000)] | None = None
    """Two-sided clip: where the advantage is negative, the policy ratio counts as at most this; TRL's
    `delta`. It must be above 1 + clipHigh."""
    dual_clip: Annotated[float, Field(gt=1, le=1000)] | None = None
    """Dual clip: where the advantage is negative, the loss of a token is at most this many times the size of
    its advantage; verl's `clip_ratio_c`."""
    sapo_temperature_pos: Annotated[float, Field(gt=0, le=1000)] | None = None
    """How fast sapo's gate closes where the advantage is positive. Defaults to 1."""
    sapo_temperature_neg: Annotated[float, Field(gt=0, le=1000)] | None = None
    """How fast sapo's gate closes where the advantage is not positive. Defaults to 1.05."""
    vespo_k_pos: Annotated[float, Field(ge=0, le=1000)] | None = None
    """Exponent of vespo's weight where the advantage is not negative. Defaults to 2."""
    vespo_lambda_pos: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Decay of vespo's weight where the advantage is not negative. Defaults to 3."""
    vespo_k_neg: Annotated[float, Field(ge=0, le=1000)] | None = None
    """Exponent of vespo's weight where the advantage is negative. Defaults to 3."""
    vespo_lambda_neg: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Decay of vespo's weight where the advantage is negative. Defaults to 2."""
    top_entropy_quantile: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the step's tokens that carry the policy term: those with the highest entropy. It costs one
    more forward pass for each update. Without it all tokens carry it."""
    off_policy_threshold: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Completions with a negative advantage are left out of the loss if they are further than this from the
    engine that sampled them, in nats per token on average; TRL's `off_policy_mask_threshold`. Without it none
    is left out. Not with fields that change the engine's probabilities: `sampling.topP`, `topK`, `minP`,
    `repetitionPenalty` and `regex`."""
    geometric_mask: GeometricMaskSpec | None = None
    """Leave a completion out of the loss where engine and trainer, before its first update on the batch, do
    not agree about it: the geometric mean of its tokens' ratios is out of bounds; verl's `rollout_rs:
    seq_mean_k1`. The mean does not grow with the length, as the product in `importanceCorrection.level:
    sequence` does. Without this section none is left out. Not with the fields of `sampling` that
    offPolicyThreshold is refused with."""
    trust_region_mask: TrustRegionMaskSpec | None = None
    """Leave a token out of the loss once its advantage has pushed its probability too far from the engine's,
    as a difference of probabilities (DPPO, arXiv:2602.04879); the mask of prime-rl's default loss. The clip
    of `lossType` stays, which compares with the policy before the first update. Without this section none is
    left out. Not with `ratioLevel: sequence`, and not with the fields of `sampling` that offPolicyThreshold
    is refused with."""
    mask_truncated: Annotated[bool, NOT_STORED] = False
    """Leave completions that were cut at `sampling.maxTokens` out of the loss; TRL's
    `mask_truncated_completions`. They still count in the advantages of their group."""
    scale_rewards: ScaleRewards = ScaleRewards.GROUP
    """Divide advantages by the standard deviation of the rewards in the `group` or in the `batch`; `none`
    does not divide."""
    aggregation: Annotated[Aggregation, NOT_STORED] = Aggregation.SUM_THEN_NORMALIZE
    """How several rewards become one advantage; TRL's `multi_objective_aggregation`. `sum_then_normalize`
    (the default) normalises the weighted sum of the rewards. `normalize_then_sum` is GDPO: it normalises each
    reward in its group before the sum."""
    baseline: Annotated[Baseline, NOT_STORED] = Baseline.GROUP_MEAN
    """What the reward of a completion is compared with. `group_mean` (the default) is the mean of its group;
    `leave_one_out` (RLOO) is the mean of the others in the group."""
    dynamic_sampling: DynamicSamplingSpec | None = None
    """DAPO's dynamic sampling: prompts whose completions all have the same reward teach nothing, so they are
    filtered out, and the next prompts are sampled instead. Without it a step is trained on what it samples
    first."""
    kl: KLSpec | None = None
    """A penalty for moving away from the reference policy, which is the model as `model.source` has it. With
    `model.lora` that is the model without its adapter. Otherwise every process holds a second copy of the
    weights, which is not trained, in the precision of the run and sharded like the policy. Without this
    section there is no penalty and no reference policy."""
    entropy: EntropySpec | None = None
    """A bonus for the entropy of the policy, against its collapse to a few answers. Without it entropy is
    only reported."""
    num_iterations: Annotated[int, Field(ge=1, le=64)] = 1
    """How many times each batch of rollouts is trained on, with one optimizer update for each of its
    `minibatches`. All updates of a step have the learning rate of that step."""
    minibatches: Annotated[int, Field(ge=1, le=65_536), NOT_STORED] = 1
    """Divide each batch of rollouts into this many minibatches, with one optimizer update for each. A
    minibatch has whole groups, drawn by the seed, so this must divide `promptsPerStep`. The policy ratio and
    the correction for the engine compare with the policy before the first of these updates, and the loss
    divides by what is in the minibatch. verl's `ppo_mini_batch_size` is promptsPerStep / minibatches.
    Defaults to 1."""
    importance_correction: ImportanceCorrectionSpec = ImportanceCorrectionSpec()
    """Correction for the difference between the probabilities that engine and trainer give the sampled
    tokens."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """AdamW and its schedule."""
    max_non_finite_steps: Annotated[int, Field(ge=1, le=1_000_000), NOT_STORED] = 3
    """The job fails after this many steps in a row without any update. An update whose gradient is not finite
    (NaN or infinite) is left out; weights and optimizer stay as they are. Defaults to 3."""
    seed: Annotated[int, Field(ge=0, le=2_147_483_647)] = 0
    """Seed of everything that is random in the run."""

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
