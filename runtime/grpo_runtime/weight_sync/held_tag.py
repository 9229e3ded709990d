"""The tag of weights that stay where they are, by the functions that tag those on their way to engines.

That is Poly1305 on a CPU; on a GPU a hash of rows there and Poly1305 of what is left. Nothing is copied.
"""

import hashlib
from collections.abc import Iterable

import torch

from grpo_runtime.weight_sync.stream.digest import KEY_BYTES, TAG_BYTES, Digest, StreamDigest
from grpo_runtime.weight_sync.stream.row_digest import RowDigest

HELD_TAG_BYTES = TAG_BYTES
_KEY = hashlib.sha256(b"weights that are held").digest()[:KEY_BYTES]
"""Public: this is not about an attacker but about bits that differ."""


def held_tag(tensors: Iterable[torch.Tensor], *, is_on_gpu: bool) -> bytes:
    """The tag of the bytes of `tensors`, one after the other. The two functions give different tags."""
    digest: Digest = (RowDigest if is_on_gpu else StreamDigest)(_KEY, ())
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8))
    return digest.tag()
