"""Learn only from the tokens where the policy was uncertain (arXiv:2506.01939)."""

import math

import torch


def top_entropy_threshold(entropies: torch.Tensor, *, mask: torch.Tensor, quantile: float) -> torch.Tensor:
    """Scalar: the entropy above which the most uncertain `quantile` of the tokens under `mask` lie.

    This is TRL's top_entropy_quantile, computed like there in float32 with linear interpolation; infinite
    when no token is under `mask`. The quantile of a part of a batch is not the batch's: take the entropies of
    all micro-batches and ranks together first.
    """
    counted = entropies.detach()[mask].float()
    if counted.numel() == 0:
        return torch.tensor(torch.inf, device=entropies.device)
    return _quantile(counted, 1 - quantile)


_MOST_OF_TORCH = 1 << 24
"""torch.quantile takes no more values."""


def _quantile(values: torch.Tensor, share: float) -> torch.Tensor:
    """torch.quantile of [N] values with linear interpolation, for any N."""
    if values.numel() <= _MOST_OF_TORCH:
        return torch.quantile(values, share)
    place = share * (values.numel() - 1)
    ordered = values.sort().values
    below = ordered[math.floor(place)]
    return torch.lerp(below, ordered[math.ceil(place)], place - math.floor(place))


def top_entropy_mask(entropies: torch.Tensor, *, mask: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    """[B, T] bool: the tokens under `mask` whose entropy is at or above `threshold`."""
    return (entropies.detach() >= threshold) & mask
