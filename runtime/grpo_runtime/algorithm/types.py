"""What goes into a loss or into advantages, and what comes out. B sequences, T completion tokens, F reward
functions."""

from dataclasses import dataclass
from typing import Literal

import torch

from grpo_runtime.algorithm.entropy_bonus import EntropyBonus
from grpo_runtime.algorithm.geometric_mask import GeometricMask
from grpo_runtime.algorithm.importance_correction import ImportanceCorrection
from grpo_runtime.algorithm.kl import KLPenalty
from grpo_runtime.algorithm.metrics import Metrics
from grpo_runtime.algorithm.trust_region_mask import TrustRegionMask


@dataclass(frozen=True, kw_only=True)
class LossInputs:
    """One micro-batch. Logprobs are natural logarithms of the chosen tokens' probabilities at the
    sampling temperature."""

    trainer_logprobs: torch.Tensor
    """[B, T], under the weights being trained, with gradient."""
    advantages: torch.Tensor
    """[B], each that of its episode."""
    loss_mask: torch.Tensor
    """[B, T] bool, true for the tokens that count. Values elsewhere may be anything, NaN included."""
    old_logprobs: torch.Tensor | None = None
    """[B, T], under the trainer's weights before the first update on this batch; None in the first update."""
    rollout_logprobs: torch.Tensor | None = None
    """[B, T], as the sampler reported them; NaN for a token that it could not score and
    that is not corrected."""
    ref_logprobs: torch.Tensor | None = None
    """[B, T], under the reference policy; needed by a KL penalty."""
    entropies: torch.Tensor | None = None
    """[B, T], of the policy being trained, in nats; for the `entropy` metric and the top-entropy mask, and
    with gradient for a bonus."""
    entropy_threshold: torch.Tensor | None = None
    """Scalar from `top_entropy_threshold` over the whole batch; None takes this micro-batch alone."""
    is_current: torch.Tensor | None = None
    """[B, T] bool, false for tokens that older weights sampled than those before the first update; None: no
    token is such."""
    episode_sizes: torch.Tensor | None = None
    """[B] int64: how many sequences the episode of each has, wherever these are computed; None: one."""


@dataclass(frozen=True, kw_only=True)
class LossOptions:
    """How the loss is computed. The defaults are TRL 1.16's, without its KL penalty and correction.

    Which of these a job can set is in `registry.NOT_EXPOSED`.
    """

    loss_type: str = "dapo"
    """A name in `registry.LOSSES`."""
    clip_low: float = 0.2
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = 0.2
    """The ratio is clipped above at 1 + clip_high; for cispo clip_high is the cap itself."""
    delta: float | None = None
    """Two-sided clip: an upper bound on the ratio also where the advantage is negative (INTELLECT-2).
    None is off."""
    dual_clip: float | None = None
    """DeepSeek-style dual clip: where the advantage is negative the objective never falls below
    dual_clip times it. None is off."""
    ratio_level: Literal["token", "sequence"] = "token"
    """`sequence` is GSPO: one ratio per sequence, the exponential of the mean log ratio."""
    kl: KLPenalty | None = None
    entropy: EntropyBonus | None = None
    importance_correction: ImportanceCorrection | None = None
    off_policy_threshold: float | None = None
    """OPSM: drop sequences of negative advantage that are further than this from the sampler (mean nats per
    token). None is off."""
    geometric_mask: GeometricMask | None = None
    trust_region_mask: TrustRegionMask | None = None
    top_entropy_quantile: float = 1.0
    """The fraction of tokens, the most uncertain ones, that carry the policy term. 1.0 is all of them."""
    max_completion_length: int | None = None
    """Tokens; dr_grpo needs it and divides by it, the other losses ignore it."""
    sapo_temperature_pos: float = 1.0
    sapo_temperature_neg: float = 1.05
    vespo_k_pos: float = 2.0
    vespo_lambda_pos: float = 3.0
    vespo_k_neg: float = 3.0
    vespo_lambda_neg: float = 2.0


@dataclass(frozen=True, kw_only=True)
class AdvantageOptions:
    """How rewards become advantages."""

    group_size: int
    weights: tuple[float, ...]
    """One per reward function [F]; a negative weight turns a reward into a penalty."""
    scale_rewards: str = "group"
    """What advantages are divided by: a name in `registry.ADVANTAGE_SCALINGS`."""
    aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = "sum_then_normalize"
    """normalize_then_sum is GDPO (arXiv:2601.05242): each function is normalised in its group, then the
    sum in the batch."""
    baseline: Literal["group_mean", "leave_one_out"] = "group_mean"
    """leave_one_out (RLOO, arXiv:2402.14740) compares a completion with the mean of the *others* of its
    group."""


@dataclass(frozen=True, kw_only=True)
class Denominators:
    """What sums are divided by: counts of the whole optimizer step, over all ranks and micro-batches.

    With them the losses of the parts of a batch add up to the loss of the batch, however it is cut.
    """

    num_tokens: float
    """Tokens under the loss mask."""
    num_sequences: float
    """Those of an episode count as one together, so these are samples."""
    num_micro_batches: float = 1
    """Over all ranks. Only bnpo uses it, which is the mean over micro-batches of each one's own mean."""

    @staticmethod
    def of_mask(
        loss_mask: torch.Tensor, *, num_sequences: int | None = None, num_micro_batches: int = 1
    ) -> "Denominators":
        """The denominators of a step whose sequences together have this [B, T] mask. `num_sequences` is as
        in the field; None: no episode has two."""
        return Denominators(
            num_tokens=float(loss_mask.sum()),
            num_sequences=float(loss_mask.shape[0] if num_sequences is None else num_sequences),
            num_micro_batches=num_micro_batches,
        )


@dataclass(frozen=True, kw_only=True)
class PolicyTermInputs:
    """What the policy term, the part of a loss that makes good tokens more likely, is computed from. Finite
    everywhere: logprobs outside `mask` are zero, so the ratio there is one."""

    ratio: torch.Tensor
    """[B, T], or [B, 1] at sequence level; with gradient."""
    token_log_ratio: torch.Tensor
    """[B, T], with gradient."""
    trainer_logprobs: torch.Tensor
    """[B, T], with gradient."""
    advantages: torch.Tensor
    """[B]"""
    mask: torch.Tensor
    """[B, T] bool."""
    correction: torch.Tensor | None
    """[B, T] or [B, 1]: the bounded ratio to the sampler, for a term that multiplies by it itself; None
    without a correction."""


@dataclass(frozen=True, kw_only=True)
class PolicyTerm:
    """What a policy term gives to the loss."""

    loss: torch.Tensor
    """[B, T], or [B, 1] for one value that counts at every token of the sequence."""
    metrics: Metrics


@dataclass(frozen=True, kw_only=True)
class LossOutput:
    """The loss of one micro-batch and what to report about it."""

    loss: torch.Tensor
    """Scalar. Sum it over micro-batches and ranks (under DDP, which averages gradients, multiply by the
    world size)."""
    metrics: Metrics
    """Metrics by TRL's names; merge over micro-batches and ranks before reading values."""
