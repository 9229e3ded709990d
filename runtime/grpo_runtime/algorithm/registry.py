"""Every loss, correction, scaling and KL estimator by its name; there is no other list of them.

To add one, write its formula in a file and add a row here. A row says whether a job can ask for it: the enums
in `grpo_api.v1alpha1.spec.loss` hold exactly the names that are exposed here, and a test compares them.
What is not exposed has no field in the spec yet, so no job can reach it; tests hold it to published numbers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import torch

from grpo_runtime.algorithm import reductions
from grpo_runtime.algorithm.advantage_scaling import AdvantageScaling, batch_std, group_std
from grpo_runtime.algorithm.cispo import cispo
from grpo_runtime.algorithm.geometric_mask import GeometricMask
from grpo_runtime.algorithm.importance_correction import Bound, ImportanceCorrection, mask_outside, truncate
from grpo_runtime.algorithm.kl import kl_k1, kl_k2, kl_k3
from grpo_runtime.algorithm.ppo_clip import ppo_clip
from grpo_runtime.algorithm.sapo import sapo
from grpo_runtime.algorithm.trust_region_mask import TrustRegionMask
from grpo_runtime.algorithm.types import (
    AdvantageOptions,
    Denominators,
    LossInputs,
    LossOptions,
    PolicyTerm,
    PolicyTermInputs,
)
from grpo_runtime.algorithm.vespo import vespo

T = TypeVar("T")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """One row of a registry."""

    implementation: T
    is_exposed: bool = False
    """Whether a job can ask for it. Then an enum of the spec has its name."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A named loss: what each token contributes, and how the contributions become one number."""

    policy_term: Callable[[PolicyTermInputs, LossOptions], PolicyTerm]
    reduction: Callable[
        [torch.Tensor, torch.Tensor, torch.Tensor | None, Denominators, LossOptions], torch.Tensor
    ]
    has_own_correction: bool = False
    """The policy term multiplies by the importance correction itself."""
    depends_on_cut: bool = False
    """The losses of the micro-batches add up to another number when the batch is cut in another way."""


LOSSES: dict[str, Entry[Loss]] = {
    "grpo": Entry(Loss(policy_term=ppo_clip, reduction=reductions.sequence_mean), is_exposed=True),
    "dapo": Entry(Loss(policy_term=ppo_clip, reduction=reductions.token_mean), is_exposed=True),
    "bnpo": Entry(
        Loss(policy_term=ppo_clip, reduction=reductions.micro_batch_mean, depends_on_cut=True),
        is_exposed=True,
    ),
    "dr_grpo": Entry(Loss(policy_term=ppo_clip, reduction=reductions.constant_length), is_exposed=True),
    "luspo": Entry(Loss(policy_term=ppo_clip, reduction=reductions.sequence_sum), is_exposed=True),
    "cispo": Entry(Loss(policy_term=cispo, reduction=reductions.token_mean), is_exposed=True),
    "sapo": Entry(Loss(policy_term=sapo, reduction=reductions.sequence_mean), is_exposed=True),
    "vespo": Entry(
        Loss(policy_term=vespo, reduction=reductions.token_mean, has_own_correction=True), is_exposed=True
    ),
}
"""Losses by `algorithm.lossType`."""

CORRECTION_MODES: dict[str, Entry[Bound]] = {
    "truncate": Entry(truncate, is_exposed=True),
    "mask": Entry(mask_outside, is_exposed=True),
}
"""Corrections by `algorithm.importanceCorrection.mode`. Its value `none` means that there is no
correction."""

ADVANTAGE_SCALINGS: dict[str, Entry[AdvantageScaling]] = {
    "group": Entry(AdvantageScaling(std=group_std), is_exposed=True),
    "batch": Entry(AdvantageScaling(std=batch_std), is_exposed=True),
    "none": Entry(AdvantageScaling(std=group_std, is_divided=False), is_exposed=True),
}
"""Scalings by `algorithm.scaleRewards`."""

KL_ESTIMATORS: dict[str, Entry[Callable[[torch.Tensor], torch.Tensor]]] = {
    "k1": Entry(kl_k1, is_exposed=True),
    "k2": Entry(kl_k2, is_exposed=True),
    "k3": Entry(kl_k3, is_exposed=True),
}
"""KL estimators by `algorithm.kl.estimator`; each takes log(ref / pi)."""

NOT_EXPOSED: dict[type[Any], frozenset[str]] = {
    LossOptions: frozenset({"max_completion_length"}),
    ImportanceCorrection: frozenset(),
    GeometricMask: frozenset(),
    TrustRegionMask: frozenset(),
    AdvantageOptions: frozenset(),
    LossInputs: frozenset(),
}
"""Options and inputs that `algorithm` has no field for. `max_completion_length` is
`sampling.maxTokens`."""


def find(entries: Mapping[str, Entry[T]], name: str, *, option: str) -> T:
    """The implementation called `name`. Raises ValueError that names the option and every name there is."""
    if name not in entries:
        raise ValueError(f"{option} ({name}) must be one of {', '.join(sorted(entries))}")
    return entries[name].implementation


def exposed_names(entries: Mapping[str, Entry[T]]) -> set[str]:
    """The names that a job can ask for."""
    return {name for name, entry in entries.items() if entry.is_exposed}


def exposed_options(kind: type[Any]) -> tuple[str, ...]:
    """The fields of the dataclass `kind` that the spec has a field for."""
    return tuple(field.name for field in fields(kind) if field.name not in NOT_EXPOSED[kind])
