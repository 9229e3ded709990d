"""CISPO: clips the weight of a token and never its gradient."""

from grpo_runtime.algorithm.metrics import mean_of
from grpo_runtime.algorithm.types import LossOptions, PolicyTerm, PolicyTermInputs


def cispo(inputs: PolicyTermInputs, options: LossOptions) -> PolicyTerm:
    """-min(r, clip_high).detach() * A * log pi (MiniMax-M1, arXiv:2506.13585, eq. 4).

    `clip_high` is TRL's epsilon_high for this loss: an absolute cap on the ratio (typically 5), without
    a lower bound. verl's CISPO clamps to [1 - eps_low, 1 + eps_high] instead: the same name with
    relative bounds.
    """
    advantages = inputs.advantages.unsqueeze(1)
    weight = inputs.ratio.clamp(max=options.clip_high).detach()
    is_clipped = ((inputs.ratio > options.clip_high) & (advantages > 0)).to(weight.dtype)
    return PolicyTerm(
        loss=-weight * advantages * inputs.trainer_logprobs,
        metrics={"cispo_clip_ratio": mean_of(is_clipped, mask=inputs.mask)},
    )
