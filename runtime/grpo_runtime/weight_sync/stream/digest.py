"""The tag behind a stream of weights: Poly1305 (RFC 8439, section 2.5) under a key that is used once.

The bytes travel over a wire that nobody authenticates; the key travels with the manifest on the control
channel, which is. The tag depends on the names, dtypes, shapes and bytes of the tensors and on nothing else:
not on buffers, backends, or how the trainer spreads its weights. One core computes it several times as fast
as a SHA-256, beside the copying and the sending. All engines of a sync know the key: it does not protect one
from another.
"""

import json
from collections.abc import Iterable
from hmac import compare_digest
from typing import Protocol

import torch
from cryptography.hazmat.primitives.poly1305 import Poly1305

KEY_BYTES = 32
TAG_BYTES = 16
_PIECE_BYTES = 1024 * 1024
"""The library holds Python's lock for as long as it computes: other threads run between two pieces."""


class DescribedTensor(Protocol):
    """What the tag takes of a tensor besides its bytes."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


class Digest(Protocol):
    """Computes the tag of one stream while its bytes come in order."""

    def update(self, data: torch.Tensor) -> None:
        """Take in the next bytes (uint8 [num_bytes], contiguous)."""
        ...

    def tag(self) -> bytes:
        """The tag of all that came. Nothing can come after it."""
        ...


def header_of(tensors: Iterable[DescribedTensor]) -> bytes:
    """What comes before the bytes of the tensors."""
    header = json.dumps([[tensor.name, tensor.dtype, list(tensor.shape)] for tensor in tensors])
    return header.encode() + b"\n"


class StreamDigest:
    """The tag on one core of the CPU; see `Digest`."""

    def __init__(self, key: bytes, tensors: Iterable[DescribedTensor]) -> None:
        self._state = Poly1305(key)
        self._state.update(header_of(tensors))

    def update(self, data: torch.Tensor) -> None:
        """See `Digest`. Bytes of a GPU are copied first: only `RowDigest` computes there."""
        memory = data.cpu().numpy().data
        for start in range(0, len(memory), _PIECE_BYTES):
            self._state.update(memory[start : start + _PIECE_BYTES])

    def tag(self) -> bytes:
        """See `Digest`."""
        return self._state.finalize()


def is_same_tag(one: bytes, other: bytes) -> bool:
    """Whether two tags are equal, in a time that does not tell where they differ."""
    return compare_digest(one, other)
