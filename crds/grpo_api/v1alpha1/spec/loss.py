"""What the fields of `algorithm` about the loss can say, and which of them go together."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from grpo_api.model import NOT_STORED, ApiModel
from grpo_api.rule import rule


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
        """Whether the ratio has an upper bound, which `clipHigh` says."""
        return self.is_clipped or self is LossType.CISPO


class RatioLevel(StrEnum):
    """What one policy ratio is about."""

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
    """`truncate` clamps the ratio to the bounds, `mask` drops tokens outside them, `none` ignores it."""
    floor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Lower bound of the ratio."""
    cap: Annotated[float, Field(ge=1, le=1000)] = 2.0
    """Upper bound of the ratio."""
    level: Annotated[RatioLevel, NOT_STORED] = RatioLevel.TOKEN
    """`token`, as without it, has a ratio for each token; `sequence` has one for each completion, the product
    of those of its tokens, and drops or clamps the completion as a whole. `sequence` is not for completions
    that are sampled with `sampling.topP`, `topK` or `minP`."""

    @property
    def is_on(self) -> bool:
        """Whether anything is corrected."""
        return self.mode is not ImportanceCorrectionMode.NONE


class KLEstimator(StrEnum):
    """How the divergence from the reference policy is estimated from one token."""

    K1 = "k1"
    K2 = "k2"
    K3 = "k3"


class RefSyncSpec(ApiModel):
    """A reference policy that follows the policy (TR-DPO, arXiv:2404.09656); TRL's `sync_ref_model`."""

    every_steps: Annotated[int, Field(ge=1, le=10_000_000)]
    """After every so many steps the reference becomes mix x policy + (1 - mix) x reference; TRL's
    `ref_model_sync_steps`."""
    mix: Annotated[float, Field(gt=0, le=1), NOT_STORED] = 0.6
    """The policy's share in it; TRL's `ref_model_mixup_alpha`. Without it 0.6."""


@rule(
    cel="!has(self.refSync) || self.beta > 0.0",
    sentence="algorithm.kl.refSync needs a reference policy, which there is none with beta 0: raise "
    "algorithm.kl.beta, or remove refSync",
    field=".refSync",
)
def what_follows_is_there(ref_sync: RefSyncSpec | None, beta: float) -> bool:
    """With beta 0 no reference is loaded."""
    return ref_sync is None or beta > 0


class KLSpec(ApiModel):
    """A penalty for leaving the reference policy, which is the model as `model.source` has it. With
    `model.lora` it is the model without its adapter; else every process has a second copy of the weights,
    which is not trained, in the precision of the run and spread as the policy is."""

    rules = (what_follows_is_there,)

    beta: Annotated[float, Field(ge=0, le=1000)]
    """How much of the divergence is added to the loss of each token; TRL's `beta`. With 0 there is no
    penalty, and no reference policy is loaded."""
    estimator: Annotated[KLEstimator, NOT_STORED] = KLEstimator.K3
    """`k1` is log(pi / ref), `k2` half its square, `k3`, as without it, ref/pi - log(ref/pi) - 1, which is
    what TRL uses."""
    bias_correction: Annotated[bool, NOT_STORED] = True
    """TRL's `use_bias_correction_kl`: whether the estimate is multiplied by the policy ratio, so that its
    gradient is right also where the tokens come from an older policy. Without it true, as in TRL 1.16."""
    ref_sync: RefSyncSpec | None = None
    """Let the reference follow the policy. It is float32 then, so that a small `mix` is not rounded away, and
    a part of every checkpoint. Not with `model.lora`, whose reference is the model without its adapter.
    Without it the reference stays."""


CLIP_HIGH = 0.2
CISPO_CAP = 5.0
"""What ScaleRL (arXiv:2510.13786) recommends."""


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
def upper_clip_has_a_ratio(loss_type: LossType, clip_high: float | None) -> bool:
    """A bound that the loss does not have would be ignored. clipLow has a default, so that nobody can tell
    whether it was asked for."""
    return clip_high is None or loss_type.has_upper_clip


@rule(
    cel="(!has(self.delta) && !has(self.dualClip)) || !(self.lossType in ['cispo', 'sapo', 'vespo'])",
    sentence="algorithm.lossType must be one that clips its ratio (dapo, grpo, bnpo, dr_grpo or luspo) with "
    "algorithm.delta or algorithm.dualClip: set it to one of these, or remove delta and dualClip",
    field=".lossType",
)
def bounded_loss_is_clipped(loss_type: LossType, delta: float | None, dual_clip: float | None) -> bool:
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
    sentence="algorithm.lossType must be sapo with sapoTemperaturePos or sapoTemperatureNeg: set it, or "
    "remove them",
    field=".lossType",
)
def temperatures_are_of_sapo(
    loss_type: LossType, sapo_temperature_pos: float | None, sapo_temperature_neg: float | None
) -> bool:
    """No other loss has them."""
    return loss_type is LossType.SAPO or (sapo_temperature_pos is None and sapo_temperature_neg is None)


@rule(
    cel="self.lossType == 'vespo' || (!has(self.vespoKPos) && !has(self.vespoLambdaPos) && "
    "!has(self.vespoKNeg) && !has(self.vespoLambdaNeg))",
    sentence="algorithm.lossType must be vespo with vespoKPos, vespoLambdaPos, vespoKNeg or vespoLambdaNeg: "
    "set it, or remove them",
    field=".lossType",
)
def shapes_are_of_vespo(
    loss_type: LossType,
    vespo_k_pos: float | None,
    vespo_lambda_pos: float | None,
    vespo_k_neg: float | None,
    vespo_lambda_neg: float | None,
) -> bool:
    """No other loss has them."""
    given = (vespo_k_pos, vespo_lambda_pos, vespo_k_neg, vespo_lambda_neg)
    return loss_type is LossType.VESPO or all(value is None for value in given)


@rule(
    cel="self.lossType != 'vespo' || !has(self.ratioLevel) || self.ratioLevel == 'token'",
    sentence="algorithm.ratioLevel must be token with lossType vespo, which makes a weight of the whole "
    "sequence itself: remove it",
    field=".ratioLevel",
)
def vespo_has_token_ratios(loss_type: LossType, ratio_level: RatioLevel | None) -> bool:
    """It takes the ratios of tokens together itself."""
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
    upper_clip_has_a_ratio,
    bounded_loss_is_clipped,
    delta_leaves_the_clip_range,
    temperatures_are_of_sapo,
    shapes_are_of_vespo,
    vespo_has_token_ratios,
    vespo_corrects_tokens,
    gdpo_normalises_itself,
)
