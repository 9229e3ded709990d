"""Learn only from the tokens where the policy was uncertain (arXiv:2506.01939)."""

import torch


def top_entropy_threshold(entropies: torch.Tensor, *, mask: torch.Tensor, quantile: float) -> torch.Tensor:
    """Scalar: the entropy above which the most uncertain `quantile` of the tokens under `mask` lie.

    This is TRL's top_entropy_quantile, computed like there in float32 with linear interpolation; infinite
    when no token is under `mask`. The quantile of a part of a batch is not the batch's: with several ranks,
    gather the [B, T] tensors of all of them first.
    """
    counted = entropies.detach()[mask].float()
    if counted.numel() == 0:
        return torch.tensor(torch.inf, device=entropies.device)
    return torch.quantile(counted, 1 - quantile)


def top_entropy_mask(entropies: torch.Tensor, *, mask: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    """[B, T] bool: the tokens under `mask` whose entropy is at or above `threshold`."""
    return (entropies.detach() >= threshold) & mask
