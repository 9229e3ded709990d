"""The losses by name, and how one is put together from its parts."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from grpo_runtime.algorithm import reductions
from grpo_runtime.algorithm.cispo import cispo
from grpo_runtime.algorithm.importance_correction import correction_metrics, correction_ratio
from grpo_runtime.algorithm.kl import token_kl
from grpo_runtime.algorithm.metrics import Metrics, mean_of
from grpo_runtime.algorithm.off_policy_mask import off_policy_mask
from grpo_runtime.algorithm.policy_term import PolicyTerm, PolicyTermInputs
from grpo_runtime.algorithm.ppo_clip import ppo_clip
from grpo_runtime.algorithm.ratios import log_ratio, policy_ratio
from grpo_runtime.algorithm.sapo import sapo
from grpo_runtime.algorithm.top_entropy import top_entropy_mask, top_entropy_threshold
from grpo_runtime.algorithm.types import Denominators, LossInputs, LossOptions, LossOutput
from grpo_runtime.algorithm.vespo import vespo


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A named loss: what each token contributes, and how the contributions become one number."""

    policy_term: Callable[[PolicyTermInputs, LossOptions], PolicyTerm]
    reduction: Callable[[torch.Tensor, torch.Tensor, Denominators, LossOptions], torch.Tensor]
    has_own_correction: bool = False
    """The policy term takes the correction to the sampler into its own weight."""


LOSSES: dict[str, Loss] = {
    "grpo": Loss(policy_term=ppo_clip, reduction=reductions.sequence_mean),
    "dapo": Loss(policy_term=ppo_clip, reduction=reductions.token_mean),
    "bnpo": Loss(policy_term=ppo_clip, reduction=reductions.micro_batch_mean),
    "dr_grpo": Loss(policy_term=ppo_clip, reduction=reductions.constant_length),
    "luspo": Loss(policy_term=ppo_clip, reduction=reductions.sequence_sum),
    "cispo": Loss(policy_term=cispo, reduction=reductions.token_mean),
    "sapo": Loss(policy_term=sapo, reduction=reductions.sequence_mean),
    "vespo": Loss(policy_term=vespo, reduction=reductions.token_mean, has_own_correction=True),
}


def compute_loss(inputs: LossInputs, *, options: LossOptions, denominators: Denominators) -> LossOutput:
    """The loss of one micro-batch as its share of the whole step, with TRL 1.16's definitions and metric
    names.

    Raises ValueError for options that contradict each other or lack an input.
    """
    definition = _definition(options)
    mask = inputs.loss_mask
    trainer = _zero_outside(inputs.trainer_logprobs, mask)
    old = trainer.detach() if inputs.old_logprobs is None else _zero_outside(inputs.old_logprobs, mask)
    metrics: Metrics = {}

    token_log_ratio = log_ratio(trainer, old)
    ratio = policy_ratio(token_log_ratio, mask=mask, level=options.ratio_level)

    correction = None
    if options.importance_correction is not None:
        rollout = _required(inputs.rollout_logprobs, "importance_correction", "rollout_logprobs")
        correction = correction_ratio(
            options.importance_correction, old_logprobs=old, rollout_logprobs=rollout, mask=mask
        )
        metrics |= correction_metrics(correction, old_logprobs=old, rollout_logprobs=rollout, mask=mask)

    term = definition.policy_term(
        PolicyTermInputs(
            ratio=ratio,
            token_log_ratio=token_log_ratio,
            trainer_logprobs=trainer,
            advantages=inputs.advantages,
            mask=mask,
            correction=correction,
        ),
        options,
    )
    metrics |= term.metrics
    token_loss = _keep_chosen(term.loss, inputs, options, trainer=trainer, old=old)
    if correction is not None and not definition.has_own_correction:
        token_loss = token_loss * correction
    if options.kl is not None:
        ref = _zero_outside(_required(inputs.ref_logprobs, "kl", "ref_logprobs"), mask)
        divergence = token_kl(options.kl, trainer_logprobs=trainer, ref_logprobs=ref, ratio=ratio)
        token_loss = token_loss + options.kl.beta * divergence
        metrics["kl"] = mean_of(divergence, mask=mask)
    if inputs.entropies is not None:
        metrics["entropy"] = mean_of(inputs.entropies, mask=mask)
    return LossOutput(loss=definition.reduction(token_loss, mask, denominators, options), metrics=metrics)


def _keep_chosen(
    token_loss: torch.Tensor,
    inputs: LossInputs,
    options: LossOptions,
    *,
    trainer: torch.Tensor,
    old: torch.Tensor,
) -> torch.Tensor:
    """Zero the policy term of sequences too far off policy and of tokens the policy was certain about."""
    mask = inputs.loss_mask
    if options.off_policy_threshold is not None:
        sampling = old if inputs.rollout_logprobs is None else inputs.rollout_logprobs
        token_loss = token_loss * off_policy_mask(
            advantages=inputs.advantages,
            trainer_logprobs=trainer,
            sampling_logprobs=_zero_outside(sampling, mask),
            mask=mask,
            threshold=options.off_policy_threshold,
        )
    if options.top_entropy_quantile < 1.0:
        entropies = _required(inputs.entropies, "top_entropy_quantile", "entropies")
        threshold = inputs.entropy_threshold
        if threshold is None:
            threshold = top_entropy_threshold(entropies, mask=mask, quantile=options.top_entropy_quantile)
        token_loss = token_loss * top_entropy_mask(entropies, mask=mask, threshold=threshold)
    return token_loss


def _definition(options: LossOptions) -> Loss:
    if options.loss_type not in LOSSES:
        raise ValueError(f"loss_type ({options.loss_type}) must be one of {', '.join(sorted(LOSSES))}")
    definition = LOSSES[options.loss_type]
    correction = options.importance_correction
    if definition.has_own_correction and correction is not None and correction.level != "token":
        raise ValueError(
            f"loss_type {options.loss_type} needs importance correction at token level, "
            f"not {correction.level}"
        )
    return definition


def _zero_outside(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Padding may hold anything; zeros there keep every later step, and its gradient, finite."""
    return torch.where(mask, values, 0.0)


def _required(tensor: torch.Tensor | None, option: str, name: str) -> torch.Tensor:
    if tensor is None:
        raise ValueError(f"{option} is set but the batch has no {name}")
    return tensor
