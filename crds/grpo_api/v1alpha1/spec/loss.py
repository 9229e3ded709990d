"""What the fields of `algorithm` about the loss can say, with the sections `kl`, `entropy`,
`importanceCorrection`, `geometricMask` and `trustRegionMask`, and which of them go together."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from grpo_api.model import NOT_STORED, ApiModel
from grpo_api.rule import rule

CLIP_HIGH = 0.2
CISPO_CAP = 5.0
"""The cap that ScaleRL (arXiv:2510.13786) recommends."""
ENTROPY_DELTA, LEAST_ENTROPY, MOST_ENTROPY = 0.005, 0.0, 1.0
"""TRL's defaults."""


class LossType(StrEnum):
    """Which loss is minimised."""

    DAPO = "dapo"
    GRPO = "grpo"
    BNPO = "bnpo"
    DR_GRPO = "dr_grpo"
    LUSPO = "luspo"
    CISPO = "cispo"
    SAPO = "sapo"
    VESPO = "vespo"

    @property
    def is_clipped(self) -> bool:
        """Whether the policy term is PPO's, with a clipped ratio."""
        return self not in (LossType.CISPO, LossType.SAPO, LossType.VESPO)

    @property
    def has_upper_clip(self) -> bool:
        """Whether the ratio has an upper bound, given by `clipHigh`."""
        return self.is_clipped or self is LossType.CISPO


class RatioLevel(StrEnum):
    """Granularity of the ratio."""

    TOKEN = "token"  # noqa: S105 - no password
    SEQUENCE = "sequence"


class Aggregation(StrEnum):
    """How the values of several reward functions become one advantage."""

    SUM_THEN_NORMALIZE = "sum_then_normalize"
    NORMALIZE_THEN_SUM = "normalize_then_sum"


class Baseline(StrEnum):
    """What a completion is compared with."""

    GROUP_MEAN = "group_mean"
    LEAVE_ONE_OUT = "leave_one_out"


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
    """Correction for the difference between the trainer's and the engine's probabilities."""

    mode: ImportanceCorrectionMode = ImportanceCorrectionMode.TRUNCATE
    """What happens to a token whose ratio of trainer to engine probability is out of bounds. `truncate`
    clamps the ratio to the bounds, `mask` drops the token, and `none` corrects nothing."""
    floor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Lower bound of the ratio."""
    cap: Annotated[float, Field(ge=1, le=1000)] = 2.0
    """Upper bound of the ratio."""
    level: Annotated[RatioLevel, NOT_STORED] = RatioLevel.TOKEN
    """Level at which ratios are taken: each `token` (the default), or each `sequence`. The ratio of a
    sequence is the product of those of its tokens, and the completion is clamped or dropped as a whole.
    `sequence` is not for completions that are sampled with `sampling.topP`, `topK` or `minP`."""

    @property
    def is_on(self) -> bool:
        """Whether anything is corrected."""
        return self.mode is not ImportanceCorrectionMode.NONE


class GeometricMaskSpec(ApiModel):
    """Bounds outside of which a whole completion is left out of the loss."""

    low: Annotated[float, Field(gt=0, le=1), NOT_STORED] = 0.99
    """A completion is left out where the geometric mean of its tokens' ratios of trainer to engine
    probability is below this; SkyRL's `geo_mask_low`. Defaults to 0.99."""
    high: Annotated[float, Field(ge=1, le=1000), NOT_STORED] = 1.01
    """A completion is left out where that mean is above this; SkyRL's `geo_mask_high`. Defaults to 1.01."""


class TrustRegionMaskSpec(ApiModel):
    """How far the probability of a token may move before the token is left out of the loss."""

    low: Annotated[float, Field(gt=0, le=1), NOT_STORED] = 0.2
    """A token of negative advantage is left out where its probability is lower than the engine's by more than
    this; prime-rl's `dppo_mask_low`. Defaults to 0.2."""
    high: Annotated[float, Field(gt=0, le=1), NOT_STORED] = 0.2
    """A token of positive advantage is left out where its probability is higher than the engine's by more
    than this; prime-rl's `dppo_mask_high`. Defaults to 0.2."""


class KLEstimator(StrEnum):
    """How the divergence from the reference policy is estimated from one token."""

    K1 = "k1"
    K2 = "k2"
    K3 = "k3"


class RefSyncSpec(ApiModel):
    """How the reference policy follows the policy."""

    every_steps: Annotated[int, Field(ge=1, le=10_000_000)]
    """After every so many steps the reference becomes mix x policy + (1 - mix) x reference; TRL's
    `ref_model_sync_steps`."""
    mix: Annotated[float, Field(gt=0, le=1), NOT_STORED] = 0.6
    """Share of the policy in the new reference; TRL's `ref_model_mixup_alpha`. Defaults to 0.6."""


@rule(
    cel="!has(self.refSync) || self.beta > 0.0",
    sentence="algorithm.kl.refSync needs a reference policy, and with beta 0 there is none: raise "
    "algorithm.kl.beta, or remove refSync",
    field=".refSync",
)
def ref_sync_needs_reference(ref_sync: RefSyncSpec | None, beta: float) -> bool:
    """With beta 0 no reference is loaded."""
    return ref_sync is None or beta > 0


class KLSpec(ApiModel):
    """A penalty for moving away from the reference policy."""

    rules = (ref_sync_needs_reference,)

    beta: Annotated[float, Field(ge=0, le=1000)]
    """How much of the divergence is added to the loss of each token; TRL's `beta`. With 0 there is no
    penalty, and no reference policy is loaded."""
    estimator: Annotated[KLEstimator, NOT_STORED] = KLEstimator.K3
    """How the divergence is estimated from one token. `k1` is log(pi / ref), `k2` is half its square, and
    `k3` (the default, as in TRL) is ref/pi - log(ref/pi) - 1."""
    bias_correction: Annotated[bool, NOT_STORED] = True
    """Multiply the estimate by the policy ratio, so that its gradient is right even where the tokens come
    from an older policy; TRL's `use_bias_correction_kl`. Defaults to true, as in TRL 1.16."""
    ref_sync: RefSyncSpec | None = None
    """Let the reference policy follow the policy (TR-DPO, arXiv:2404.09656); TRL's `sync_ref_model`. The
    reference is then in float32, so that a small `mix` is not rounded away, and is part of every checkpoint.
    Not with `model.lora`, whose reference is the model without its adapter. Without it the reference stays as
    it is."""


@rule(
    cel="has(self.target) || (!has(self.delta) && !has(self.minCoefficient) && !has(self.maxCoefficient))",
    sentence="algorithm.entropy.delta, minCoefficient and maxCoefficient say how the coefficient "
    "follows algorithm.entropy.target, which is not set: set it, or remove them",
    field=".target",
)
def only_a_target_moves_the_coefficient(
    target: float | None,
    delta: float | None,
    min_coefficient: float | None,
    max_coefficient: float | None,
) -> bool:
    """Without a target the coefficient stays what it is."""
    return target is not None or all(value is None for value in (delta, min_coefficient, max_coefficient))


@rule(
    cel="!has(self.target) || ("
    f"(has(self.minCoefficient) ? self.minCoefficient : {LEAST_ENTROPY}) <= self.coefficient && "
    f"self.coefficient <= (has(self.maxCoefficient) ? self.maxCoefficient : {MOST_ENTROPY}))",
    sentence="algorithm.entropy.coefficient, with which a run begins, must be from minCoefficient (0 if "
    "not set) to maxCoefficient (1 if not set): change one of them",
    field=".coefficient",
)
def coefficient_begins_within_its_bounds(
    target: float | None,
    coefficient: float,
    min_coefficient: float | None,
    max_coefficient: float | None,
) -> bool:
    """Outside its bounds the coefficient could not be moved in both directions."""
    least = LEAST_ENTROPY if min_coefficient is None else min_coefficient
    most = MOST_ENTROPY if max_coefficient is None else max_coefficient
    return target is None or least <= coefficient <= most


class EntropySpec(ApiModel):
    """A bonus for the entropy of the policy, against its collapse to a few answers."""

    rules = (only_a_target_moves_the_coefficient, coefficient_begins_within_its_bounds)

    coefficient: Annotated[float, Field(ge=0, le=1000)]
    """How much of the mean entropy of the tokens is subtracted from the loss; TRL's `entropy_coef`. Entropy
    is in nats, at `sampling.temperature`, and its mean is over all tokens, whatever `lossType` divides by.
    With 0 and without a target there is no bonus."""
    target: Annotated[float, Field(gt=0, le=100)] | None = None
    """Adapt the coefficient to this entropy; TRL's `entropy_target` with `use_adaptive_entropy`
    (Skywork-OR1). After each step the coefficient rises by `delta` if the metric `entropy` of the step is at
    or below the target, and otherwise falls by it. The bonus counts only in a step that follows one at or
    below the target. Set it close to the entropy that a run begins with. Without it the coefficient stays."""
    delta: Annotated[float, Field(gt=0, le=1000)] | None = None
    """How much the coefficient rises or falls after a step; TRL's `entropy_coef_delta`. Defaults to 0.005."""
    min_coefficient: Annotated[float, Field(ge=0, le=1000)] | None = None
    """The lowest that the coefficient may fall to; TRL's `entropy_coef_min`. Defaults to 0."""
    max_coefficient: Annotated[float, Field(gt=0, le=1000)] | None = None
    """The highest that the coefficient may rise to; TRL's `entropy_coef_max`. Defaults to 1."""

    @property
    def has_bonus(self) -> bool:
        """Whether the loss of some step may have a bonus."""
        return self.coefficient > 0 or self.target is not None


@rule(
    cel="self.lossType != 'cispo' || !has(self.clipHigh) || self.clipHigh >= 1.0",
    sentence="with lossType cispo algorithm.clipHigh is the cap of the ratio itself, so it must be at least "
    "1: remove it, which means 5, or set it to the cap",
    field=".clipHigh",
)
def cispo_has_a_cap(loss_type: LossType, clip_high: float | None) -> bool:
    """A cap below 1 would weigh every token less, whatever its ratio."""
    return loss_type is not LossType.CISPO or clip_high is None or clip_high >= 1


@rule(
    cel="!has(self.clipHigh) || !(self.lossType in ['sapo', 'vespo'])",
    sentence="algorithm.clipHigh does nothing with lossType sapo or vespo, which do not clip the ratio: "
    "remove it, or set lossType to another loss",
    field=".clipHigh",
)
def clip_high_needs_clipping_loss(loss_type: LossType, clip_high: float | None) -> bool:
    """A bound that the loss does not have would be ignored. clipLow has a default, so that nobody can tell
    whether it was asked for."""
    return clip_high is None or loss_type.has_upper_clip


@rule(
    cel="(!has(self.delta) && !has(self.dualClip)) || !(self.lossType in ['cispo', 'sapo', 'vespo'])",
    sentence="algorithm.delta and algorithm.dualClip need an algorithm.lossType that clips its ratio: "
    "set it to dapo, grpo, bnpo, dr_grpo or luspo, or remove delta and dualClip",
    field=".lossType",
)
def bounds_need_clipped_loss(loss_type: LossType, delta: float | None, dual_clip: float | None) -> bool:
    """The other losses have no such bound."""
    return (delta is None and dual_clip is None) or loss_type.is_clipped


@rule(
    cel=f"!has(self.delta) || self.delta > 1.0 + (has(self.clipHigh) ? self.clipHigh : {CLIP_HIGH})",
    sentence="algorithm.delta must be above 1 + clipHigh, because below it clipHigh would do nothing: raise "
    "delta or lower clipHigh",
    field=".delta",
)
def delta_leaves_the_clip_range(delta: float | None, clip_high: float | None) -> bool:
    """The bound for negative advantages is outside the range of the others."""
    return delta is None or delta > 1.0 + (CLIP_HIGH if clip_high is None else clip_high)


@rule(
    cel="self.lossType == 'sapo' || (!has(self.sapoTemperaturePos) && !has(self.sapoTemperatureNeg))",
    sentence="algorithm.sapoTemperaturePos and sapoTemperatureNeg need algorithm.lossType sapo: set it, "
    "or remove them",
    field=".lossType",
)
def sapo_options_need_sapo(
    loss_type: LossType, sapo_temperature_pos: float | None, sapo_temperature_neg: float | None
) -> bool:
    """No other loss has these temperatures."""
    return loss_type is LossType.SAPO or (sapo_temperature_pos is None and sapo_temperature_neg is None)


@rule(
    cel="self.lossType == 'vespo' || (!has(self.vespoKPos) && !has(self.vespoLambdaPos) && "
    "!has(self.vespoKNeg) && !has(self.vespoLambdaNeg))",
    sentence="algorithm.vespoKPos, vespoLambdaPos, vespoKNeg and vespoLambdaNeg need algorithm.lossType "
    "vespo: set it, or remove them",
    field=".lossType",
)
def vespo_options_need_vespo(
    loss_type: LossType,
    vespo_k_pos: float | None,
    vespo_lambda_pos: float | None,
    vespo_k_neg: float | None,
    vespo_lambda_neg: float | None,
) -> bool:
    """No other loss has these options."""
    given = (vespo_k_pos, vespo_lambda_pos, vespo_k_neg, vespo_lambda_neg)
    return loss_type is LossType.VESPO or all(value is None for value in given)


@rule(
    cel="self.lossType != 'vespo' || !has(self.ratioLevel) || self.ratioLevel == 'token'",
    sentence="algorithm.ratioLevel must be token with lossType vespo, which combines the ratios of a "
    "sequence itself: remove it",
    field=".ratioLevel",
)
def vespo_has_token_ratios(loss_type: LossType, ratio_level: RatioLevel | None) -> bool:
    """VESPO combines the ratios of the tokens itself."""
    return loss_type is not LossType.VESPO or ratio_level is not RatioLevel.SEQUENCE


@rule(
    cel="self.lossType != 'vespo' || self.importanceCorrection.mode == 'none' || "
    "!has(self.importanceCorrection.level) || self.importanceCorrection.level == 'token'",
    sentence="algorithm.importanceCorrection.level must be token with lossType vespo, which takes the "
    "correction of each token into its weight: remove it",
    field=".importanceCorrection.level",
)
def vespo_corrects_tokens(loss_type: LossType, importance_correction: ImportanceCorrectionSpec) -> bool:
    """A correction of the sequence would count once for each token."""
    is_of_sequence = importance_correction.level is RatioLevel.SEQUENCE
    return loss_type is not LossType.VESPO or not importance_correction.is_on or not is_of_sequence


@rule(
    cel="!has(self.trustRegionMask) || "
    "(has(self.ratioLevel) ? self.ratioLevel : (self.lossType == 'luspo' ? 'sequence' : 'token')) == 'token'",
    sentence="algorithm.trustRegionMask leaves out single tokens, but one ratio of the sequence moves all of "
    "its tokens: set algorithm.ratioLevel to token, or remove trustRegionMask",
    field=".trustRegionMask",
)
def trust_region_is_of_tokens(
    loss_type: LossType, ratio_level: RatioLevel | None, trust_region_mask: TrustRegionMaskSpec | None
) -> bool:
    """The gradient of a ratio of the sequence is that of each of its tokens."""
    level = ratio_level or (RatioLevel.SEQUENCE if loss_type is LossType.LUSPO else RatioLevel.TOKEN)
    return trust_region_mask is None or level is RatioLevel.TOKEN


@rule(
    cel="!has(self.aggregation) || self.aggregation == 'sum_then_normalize' || (self.scaleRewards == 'group' "
    "&& (!has(self.baseline) || self.baseline == 'group_mean'))",
    sentence="algorithm.aggregation normalize_then_sum (GDPO) divides each reward by its group's standard "
    "deviation and subtracts means: remove algorithm.scaleRewards and algorithm.baseline, or set aggregation "
    "to sum_then_normalize",
    field=".aggregation",
)
def gdpo_normalises_itself(aggregation: Aggregation, scale_rewards: ScaleRewards, baseline: Baseline) -> bool:
    """GDPO has one way to normalise."""
    if aggregation is not Aggregation.NORMALIZE_THEN_SUM:
        return True
    return scale_rewards is ScaleRewards.GROUP and baseline is not Baseline.LEAVE_ONE_OUT


LOSS_RULES = (
    cispo_has_a_cap,
    clip_high_needs_clipping_loss,
    bounds_need_clipped_loss,
    delta_leaves_the_clip_range,
    sapo_options_need_sapo,
    vespo_options_need_vespo,
    vespo_has_token_ratios,
    vespo_corrects_tokens,
    trust_region_is_of_tokens,
    gdpo_normalises_itself,
)
