"""SAPO: a soft gate in place of PPO's hard clip."""

import torch

from grpo_runtime.algorithm.types import LossOptions, PolicyTerm, PolicyTermInputs


def sapo(inputs: PolicyTermInputs, options: LossOptions) -> PolicyTerm:
    """-(4 / t) * sigmoid(t (r - 1)) * A, t by the sign of A (arXiv:2511.20347, eq. 6).

    At r = 1 its gradient is that of the unclipped ratio; away from it the gradient fades at a speed set by
    `sapo_temperature_pos` (A > 0) and `sapo_temperature_neg`.
    """
    advantages = inputs.advantages.unsqueeze(1)
    # float32 whatever the inputs are, as in TRL: 1.05 is rounded there, which shows in the eighth digit
    temperature = torch.where(advantages > 0, options.sapo_temperature_pos, options.sapo_temperature_neg)
    gate = torch.sigmoid(temperature * (inputs.ratio - 1)) * 4 / temperature
    return PolicyTerm(loss=-gate * advantages, metrics={})
