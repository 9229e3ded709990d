"""How the loss of a micro-batch is put together from its parts, and which sequences its gradient needs."""

import torch

from grpo_runtime.algorithm.geometric_mask import geometric_mask, geometric_mask_metrics
from grpo_runtime.algorithm.importance_correction import correction_ratio, distance_metrics, ratio_metrics
from grpo_runtime.algorithm.kl import KLPenalty, token_kl
from grpo_runtime.algorithm.metrics import Metrics, mean_of
from grpo_runtime.algorithm.off_policy_mask import off_policy_mask
from grpo_runtime.algorithm.ratios import log_ratio, policy_ratio
from grpo_runtime.algorithm.reductions import token_mean
from grpo_runtime.algorithm.registry import CORRECTION_MODES, KL_ESTIMATORS, LOSSES, Loss, find
from grpo_runtime.algorithm.top_entropy import top_entropy_mask, top_entropy_threshold
from grpo_runtime.algorithm.trust_region_mask import trust_region_mask, trust_region_metrics
from grpo_runtime.algorithm.types import Denominators, LossInputs, LossOptions, LossOutput, PolicyTermInputs


def compute_loss(inputs: LossInputs, *, options: LossOptions, denominators: Denominators) -> LossOutput:
    """The loss of one micro-batch as its share of the whole step, with TRL 1.16's definitions and metric
    names.

    Raises ValueError for options that contradict each other, name nothing in the registry or lack an input.
    """
    definition = _definition(options)
    mask = inputs.loss_mask
    trainer = _zero_outside(inputs.trainer_logprobs, mask)
    old = trainer.detach() if inputs.old_logprobs is None else _zero_outside(inputs.old_logprobs, mask)

    token_log_ratio = log_ratio(trainer, old)
    ratio = policy_ratio(token_log_ratio, mask=mask, level=options.ratio_level)
    correction, metrics = _correction(inputs, options, old=old)
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
    near, masked = _near_sampler(inputs, options, trainer=trainer, old=old)
    metrics |= term.metrics | masked
    uncertain = _most_uncertain(inputs, options)
    on_policy = _sequences_on_policy(inputs, options, trainer=trainer, old=old)
    token_loss = term.loss * on_policy * near * uncertain
    if correction is not None and not definition.has_own_correction:
        token_loss = token_loss * correction
    if options.kl is not None:
        divergence = _divergence(options.kl, inputs, trainer=trainer, ratio=ratio)
        token_loss = token_loss + options.kl.beta * divergence
        metrics["kl"] = mean_of(divergence, mask=mask)
    if inputs.entropies is not None:
        metrics["entropy"] = mean_of(inputs.entropies, mask=mask)
    loss = definition.reduction(token_loss, mask, inputs.episode_sizes, denominators, options)
    if options.entropy is not None:
        entropies = _zero_outside(_required(inputs.entropies, "entropy", "entropies"), mask)
        mean_entropy = token_mean(entropies * uncertain, mask, None, denominators, options)
        loss = loss - options.entropy.coefficient * mean_entropy
    return LossOutput(loss=loss, metrics=metrics)


def changes_gradient(advantages: torch.Tensor, *, options: LossOptions) -> torch.Tensor:
    """[B] bool: false for a sequence that the gradient is the same without, when the denominators stay those
    of the whole step.

    `advantages` are [B]. At advantage 0 every policy term and its gradient are 0.
    """
    return (advantages != 0) | needs_zero_advantages(options)


def needs_zero_advantages(options: LossOptions) -> bool:
    """Whether sequences of advantage 0 have a part in the gradient.

    A KL penalty and an entropy bonus are added for every token, the entropy threshold is that of all tokens,
    and a loss that depends on how the batch is cut divides by the tokens of each micro-batch. Raises
    ValueError for an unknown loss.
    """
    loss = find(LOSSES, options.loss_type, option="loss_type")
    is_for_all = options.kl is not None or options.entropy is not None
    return is_for_all or options.top_entropy_quantile < 1.0 or loss.depends_on_cut


def _definition(options: LossOptions) -> Loss:
    definition = find(LOSSES, options.loss_type, option="loss_type")
    correction = options.importance_correction
    if definition.has_own_correction and correction is not None and correction.level != "token":
        raise ValueError(
            f"loss_type {options.loss_type} needs importance correction at token level, "
            f"not {correction.level}"
        )
    if options.trust_region_mask is not None and options.ratio_level != "token":
        raise ValueError(
            "trust_region_mask needs ratio_level token: a ratio of the sequence has all its tokens"
        )
    return definition


def _correction(
    inputs: LossInputs, options: LossOptions, *, old: torch.Tensor
) -> tuple[torch.Tensor | None, Metrics]:
    """The factor that corrects for the sampler, None without a correction, and the sampler's metrics."""
    correction, rollout, mask = options.importance_correction, inputs.rollout_logprobs, inputs.loss_mask
    if correction is None:
        if rollout is None:
            return None, {}
        return None, _distances(inputs, rollout, old=old)
    rollout = _required(rollout, "importance_correction", "rollout_logprobs")
    bound = find(CORRECTION_MODES, correction.mode, option="importance_correction.mode")
    ratio = correction_ratio(correction, bound=bound, old_logprobs=old, rollout_logprobs=rollout, mask=mask)
    return ratio, _distances(inputs, rollout, old=old) | ratio_metrics(ratio, mask=mask)


def _distances(inputs: LossInputs, rollout: torch.Tensor, *, old: torch.Tensor) -> Metrics:
    return distance_metrics(
        old_logprobs=old, rollout_logprobs=rollout, mask=inputs.loss_mask, is_current=inputs.is_current
    )


def _sequences_on_policy(
    inputs: LossInputs, options: LossOptions, *, trainer: torch.Tensor, old: torch.Tensor
) -> torch.Tensor | float:
    """0 for sequences that are too far off policy to carry the policy term, 1 for the others."""
    if options.off_policy_threshold is None:
        return 1.0
    mask = inputs.loss_mask
    sampling = old if inputs.rollout_logprobs is None else inputs.rollout_logprobs
    return off_policy_mask(
        advantages=inputs.advantages,
        trainer_logprobs=trainer,
        sampling_logprobs=_zero_outside(sampling, mask),
        mask=mask,
        threshold=options.off_policy_threshold,
    )


def _near_sampler(
    inputs: LossInputs, options: LossOptions, *, trainer: torch.Tensor, old: torch.Tensor
) -> tuple[torch.Tensor | float, Metrics]:
    """0 for tokens that are too far from the sampler to carry the policy term, 1 for the others; and the
    shares of the former."""
    mask = inputs.loss_mask
    near: torch.Tensor | float = 1.0
    metrics: Metrics = {}
    if options.geometric_mask is not None:
        rollout = _required(inputs.rollout_logprobs, "geometric_mask", "rollout_logprobs")
        is_kept = geometric_mask(
            options.geometric_mask, old_logprobs=old, rollout_logprobs=rollout, mask=mask
        )
        metrics |= geometric_mask_metrics(is_kept, mask=mask, dtype=trainer.dtype)
        near = near * is_kept
    if options.trust_region_mask is not None:
        rollout = _required(inputs.rollout_logprobs, "trust_region_mask", "rollout_logprobs")
        is_kept = trust_region_mask(
            options.trust_region_mask,
            trainer_logprobs=trainer,
            rollout_logprobs=_zero_outside(rollout, mask),
            advantages=inputs.advantages,
        )
        metrics |= trust_region_metrics(is_kept, advantages=inputs.advantages, mask=mask)
        near = near * is_kept
    return near, metrics


def _most_uncertain(inputs: LossInputs, options: LossOptions) -> torch.Tensor | float:
    """0 for tokens that the policy was too certain about to carry the policy term, 1 for the others."""
    if options.top_entropy_quantile >= 1.0:
        return 1.0
    mask, threshold = inputs.loss_mask, inputs.entropy_threshold
    entropies = _required(inputs.entropies, "top_entropy_quantile", "entropies")
    if threshold is None:
        threshold = top_entropy_threshold(entropies, mask=mask, quantile=options.top_entropy_quantile)
    return top_entropy_mask(entropies, mask=mask, threshold=threshold)


def _divergence(
    penalty: KLPenalty, inputs: LossInputs, *, trainer: torch.Tensor, ratio: torch.Tensor
) -> torch.Tensor:
    """[B, T] divergence from the reference policy, without beta."""
    return token_kl(
        find(KL_ESTIMATORS, penalty.estimator, option="kl.estimator"),
        trainer_logprobs=trainer,
        ref_logprobs=_zero_outside(_required(inputs.ref_logprobs, "kl", "ref_logprobs"), inputs.loss_mask),
        bias_correction=ratio if penalty.is_bias_corrected else None,
    )


def _zero_outside(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Padding may hold anything; zeros there keep every later step, and its gradient, finite."""
    return torch.where(mask, values, 0.0)


def _required(tensor: torch.Tensor | None, option: str, name: str) -> torch.Tensor:
    if tensor is None:
        raise ValueError(f"{option} is set but the batch has no {name}")
    return tensor
