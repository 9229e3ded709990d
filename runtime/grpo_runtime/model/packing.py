"""Sequences in one row, one after the other, so that no padding is computed. B sequences, T tokens.

Only flash kernels keep them apart at no cost: they get where each sequence begins, by positions that
begin anew, and compute no product across. Other kernels compute all of them and throw them away.
"""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

_APART = {"full_attention", "sliding_attention", "chunked_attention"}
"""Kinds of layers that read other tokens through attention only."""


def can_pack(model: PreTrainedModel) -> bool:
    """Whether the sequences of a micro-batch can share a row: the model computes attention with a flash
    kernel, and has no layer that carries anything else from one token to the next, as convolutions and linear
    attention do."""
    config = model.config.get_text_config()
    is_flash = str(config._attn_implementation).startswith("flash")
    kinds = set(getattr(config, "layer_types", None) or ())
    return is_flash and not model._is_stateful and kinds <= _APART


@dataclass(frozen=True)
class PackedRow:
    """The tokens of a micro-batch that reach one that is scored."""

    token_ids: torch.Tensor
    """[1, N], sequence after sequence."""
    position_ids: torch.Tensor
    """[1, N], from 0 in each sequence."""
    scored: torch.Tensor
    """[S], the positions in the row whose hidden states predict a scored token."""


def pack(token_ids: torch.Tensor, mask: torch.Tensor) -> PackedRow:
    """`token_ids` [B, T] up to the last that predicts one where `mask` [B, T-1] is true; the first one alone
    when it is true nowhere."""
    predicts = torch.nn.functional.pad(mask, (0, 1))
    is_kept = predicts.flip(1).cumsum(1).flip(1) > 0
    is_kept[0, 0] = True
    positions = torch.arange(token_ids.shape[1], device=token_ids.device).expand_as(token_ids)
    return PackedRow(token_ids[is_kept][None], positions[is_kept][None], predicts[is_kept].nonzero()[:, 0])
