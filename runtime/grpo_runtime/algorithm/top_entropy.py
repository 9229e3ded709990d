"""Learn from the tokens where the policy was uncertain: forks in the text, not its fixed phrases."""

import torch


def top_entropy_threshold(entropies: torch.Tensor, *, mask: torch.Tensor, quantile: float) -> torch.Tensor:
    """Scalar: the entropy above which the most uncertain `quantile` of the tokens under `mask` lie.

    arXiv:2506.01939 (the "80/20" paper; TRL's top_entropy_quantile). A quantile of a part of the batch is
    not the batch's: with several ranks gather the [B, T] tensors of all before calling. Computed in float32
    with linear interpolation, as TRL does; infinite when no token counts.
    """
    counted = entropies.detach()[mask].float()
    if counted.numel() == 0:
        return torch.tensor(torch.inf, device=entropies.device)
    return torch.quantile(counted, 1 - quantile)


def top_entropy_mask(entropies: torch.Tensor, *, mask: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    """[B, T] bool: the tokens under `mask` whose entropy is at or above `threshold`."""
    return (entropies.detach() >= threshold) & mask
