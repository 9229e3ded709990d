"""Makes the options of advantages and loss from the fields of `algorithm`. Pure."""

from enum import StrEnum
from typing import Any

from grpo_api.contract.run_config import ResolvedAlgorithm, RunConfig
from grpo_api.v1alpha1.spec import (
    EntropySpec,
    GeometricMaskSpec,
    ImportanceCorrectionSpec,
    KLSpec,
    TrustRegionMaskSpec,
)
from grpo_runtime.algorithm.entropy_bonus import EntropyBonus, EntropyControl
from grpo_runtime.algorithm.geometric_mask import GeometricMask
from grpo_runtime.algorithm.importance_correction import ImportanceCorrection
from grpo_runtime.algorithm.kl import KLPenalty
from grpo_runtime.algorithm.registry import exposed_options
from grpo_runtime.algorithm.trust_region_mask import TrustRegionMask
from grpo_runtime.algorithm.types import AdvantageOptions, LossOptions


def advantage_options(run_config: RunConfig) -> AdvantageOptions:
    """How a run turns rewards into advantages."""
    algorithm = run_config.algorithm
    return AdvantageOptions(
        group_size=algorithm.group_size,
        weights=tuple(reward.weight for reward in run_config.rewards),
        scale_rewards=algorithm.scale_rewards.value,
        aggregation=algorithm.aggregation.value,
        baseline=algorithm.baseline.value,
    )


def loss_options(algorithm: ResolvedAlgorithm, *, max_completion_length: int | None = None) -> LossOptions:
    """The loss a spec asks for: every option that a job can set is the field of `algorithm` with its name,
    and where the field is absent the option keeps its default. `max_completion_length` is
    `sampling.maxTokens`."""
    given = {name: getattr(algorithm, name) for name in exposed_options(LossOptions)}
    options = {name: _loss_option(value) for name, value in given.items() if value is not None}
    return LossOptions(max_completion_length=max_completion_length, **options)


def entropy_control(algorithm: ResolvedAlgorithm) -> EntropyControl | None:
    """How the coefficient of the entropy bonus moves; None where it stays."""
    entropy = algorithm.entropy
    if entropy is None or entropy.target is None:
        return None
    # written out beside a target
    assert entropy.delta is not None
    assert entropy.min_coefficient is not None and entropy.max_coefficient is not None
    return EntropyControl(
        target=entropy.target,
        delta=entropy.delta,
        least=entropy.min_coefficient,
        most=entropy.max_coefficient,
    )


def _loss_option(value: Any) -> Any:
    """A value of the spec as the algorithm takes it."""
    if isinstance(value, ImportanceCorrectionSpec):
        return _importance_correction(value)
    if isinstance(value, KLSpec):
        return _penalty(value)
    if isinstance(value, EntropySpec):
        return EntropyBonus(coefficient=value.coefficient) if value.has_bonus else None
    if isinstance(value, GeometricMaskSpec):
        return GeometricMask(low=value.low, high=value.high)
    if isinstance(value, TrustRegionMaskSpec):
        return TrustRegionMask(low=value.low, high=value.high)
    return value.value if isinstance(value, StrEnum) else value


def _importance_correction(spec: ImportanceCorrectionSpec) -> ImportanceCorrection | None:
    if not spec.is_on:
        return None
    return ImportanceCorrection(level=spec.level.value, mode=spec.mode.value, floor=spec.floor, cap=spec.cap)


def _penalty(spec: KLSpec) -> KLPenalty | None:
    if spec.beta == 0:
        return None
    return KLPenalty(beta=spec.beta, estimator=spec.estimator.value, is_bias_corrected=spec.bias_correction)
