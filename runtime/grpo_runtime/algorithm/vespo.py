"""VESPO: weights a whole sequence by a smooth function of how far off policy it is."""

import math

import torch

from grpo_runtime.algorithm.metrics import mean_of
from grpo_runtime.algorithm.types import LossOptions, PolicyTerm, PolicyTermInputs

_LOWEST_LOG = math.log(1e-8)
_HIGHEST_LOG = 20.0


def vespo(inputs: PolicyTermInputs, options: LossOptions) -> PolicyTerm:
    """-phi(w) * A * log pi with phi(w) = e^lambda w^k e^(-lambda w), phi(1) = 1, without gradient
    (arXiv:2602.10693).

    w is the *product* of the sequence's token ratios, times the importance correction if there is one; the
    loss then does not multiply by the correction again. k and lambda depend on the sign of A. The bounds on
    the logarithms are TRL's, which come from the authors' code.
    """
    phi = _gamma_weight(inputs, options)
    return PolicyTerm(
        loss=-phi * inputs.advantages.unsqueeze(1) * inputs.trainer_logprobs,
        metrics={"vespo/phi_seq_mean": mean_of(phi, mask=inputs.mask)},
    )


@torch.no_grad()
def _gamma_weight(inputs: PolicyTermInputs, options: LossOptions) -> torch.Tensor:
    """[B, 1] phi(w), without gradient."""
    log_w = (inputs.token_log_ratio.clamp(-20.0, 20.0) * inputs.mask).sum(-1, keepdim=True)
    if inputs.correction is not None:
        log_w = log_w + inputs.correction.log().clamp(_LOWEST_LOG, _HIGHEST_LOG).sum(-1, keepdim=True)
    log_w = log_w.clamp(_LOWEST_LOG, _HIGHEST_LOG)
    is_good = inputs.advantages.unsqueeze(1) >= 0
    # float32 whatever the inputs are, as in TRL
    k = torch.where(is_good, options.vespo_k_pos, options.vespo_k_neg)
    lam = torch.where(is_good, options.vespo_lambda_pos, options.vespo_lambda_neg).clamp(min=1e-4)
    phi = (lam + k * log_w - lam * log_w.exp()).exp()
    return phi.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
