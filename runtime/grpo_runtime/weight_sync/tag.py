"""The tag behind a stream of weights, under a key that is used once, by the name that the update carries.

The bytes travel over a wire that nobody authenticates; the key travels with the manifest on the control
channel, which is. The tag depends on the names, dtypes, shapes and bytes of the tensors and on nothing else:
not on buffers, backends, or how the trainer spreads its weights. All engines of a sync know the key: it does
not protect one from another. A CPU computes Poly1305 (`StreamDigest`), a GPU a hash of rows first
(`RowDigest`).
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from hmac import compare_digest
from typing import Protocol

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.poly1305 import Poly1305

KEY_BYTES = 32
TAG_BYTES = 16
HELD_TAG_BYTES = TAG_BYTES
POLY1305 = "poly1305"
ROWS = "rows-poly1305"
ROW_BYTES = 4096
NUM_COLUMNS = 16
_PIECE_BYTES = 1024 * 1024
"""The library holds Python's lock for as long as it computes: other threads run between two pieces."""
_FEWEST_ROWS = 17
"""Fewest rows of a product of bytes on a GPU, in torch."""
_EXACT_BYTES = 1024
"""So many products of signed bytes add up to no more than 2^24, which float32 holds exactly."""
_KEY = hashlib.sha256(b"weights that are held").digest()[:KEY_BYTES]
"""Public: this is not about an attacker but about bits that differ."""


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


def make_digest(algorithm: str, key: bytes, tensors: Iterable[DescribedTensor]) -> Digest:
    """Makes what computes the tag. Raises LookupError for an algorithm that there is not."""
    if algorithm not in _DIGESTS:
        raise LookupError(f"no tag is called {algorithm}; there are {', '.join(_DIGESTS)}")
    return _DIGESTS[algorithm](key, tensors)


def held_tag(tensors: Iterable[torch.Tensor], *, is_on_gpu: bool) -> bytes:
    """The tag of weights that stay where they are, one after the other: nothing is copied. On a GPU it is
    another one than on a CPU."""
    digest: Digest = (RowDigest if is_on_gpu else StreamDigest)(_KEY, ())
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8))
    return digest.tag()


def is_same_tag(one: bytes, other: bytes) -> bool:
    """Whether two tags are equal, in a time that does not reveal where they differ."""
    return compare_digest(one, other)


class StreamDigest:
    """Poly1305 (RFC 8439, section 2.5) on one core of the CPU, several times as fast as a SHA-256, beside the
    copying and the sending."""

    def __init__(self, key: bytes, tensors: Iterable[DescribedTensor]) -> None:
        self._state = Poly1305(key)
        self._state.update(header_of(tensors))

    def update(self, data: torch.Tensor) -> None:
        """Take in the next bytes (uint8 [num_bytes], contiguous). Bytes of a GPU are copied first: only
        `RowDigest` computes there."""
        memory = data.cpu().numpy().data
        for start in range(0, len(memory), _PIECE_BYTES):
            self._state.update(memory[start : start + _PIECE_BYTES])

    def tag(self) -> bytes:
        """The tag of all that came."""
        return self._state.finalize()


class RowDigest:
    """A tag that a GPU computes where the weights are: a universal hash of rows, then Poly1305 of the hashes.

    Poly1305 alone runs on one core of the CPU, slower than weights move between GPUs. Here the stream is cut
    into rows of 4096 bytes, the last one filled up with zeros. A row x of signed bytes becomes the 16 numbers
    x A, where A [4096, 16] are random signed bytes: the multilinear hash of Carter and Wegman ("Universal
    classes of hash functions", 1979), over the integers. What is left, 64 bytes of a row, is authenticated by
    Poly1305 under a key that is used once, as UMAC does it (Black, Halevi, Krawczyk, Krovetz, Rogaway: "UMAC:
    Fast and secure message authentication", CRYPTO '99).

    An attacker without the key forges a stream of n rows with a probability of at most

        2^-128 + 8 (4 n + ceil(h / 16)) / 2^106        h bytes of header, RFC 8439

    Two rows that differ at byte j have the same number in a column only if sum_j A_j (x_j - y_j) = 0, which
    holds for at most one of the 256 values of A_j whatever the others are; the 16 columns are independent.
    The second term is that of Poly1305 for the hashes, and is the larger one: 2^-77 for 64 GiB. A and the key
    of Poly1305 are expanded from the key of the copy by ChaCha20, the key as in RFC 8439, section 2.6.

    The sums are below 2^26, so that every way to compute them is exact: a CPU and a GPU agree to the last
    bit.
    """

    def __init__(self, key: bytes, tensors: Iterable[DescribedTensor]) -> None:
        once, coefficients = _expand(key)
        self._state = Poly1305(once)
        self._state.update(header_of(tensors))
        self._coefficients = coefficients
        self._rest = torch.empty(0, dtype=torch.uint8)

    def update(self, data: torch.Tensor) -> None:
        """Take in the next bytes (uint8 [num_bytes], contiguous). Waits for the device."""
        if len(self._rest):
            data = torch.cat([self._rest.to(data.device), data])
        end = len(data) - len(data) % ROW_BYTES
        self._rest = data[end:].clone()
        self._take(data[:end])

    def tag(self) -> bytes:
        """The tag of all that came."""
        if len(self._rest):
            self._take(torch.nn.functional.pad(self._rest, (0, ROW_BYTES - len(self._rest))))
        return self._state.finalize()

    def _take(self, whole: torch.Tensor) -> None:
        if len(whole):
            if self._coefficients.device != whole.device:
                self._coefficients = self._coefficients.to(whole.device)
            rows = whole.view(torch.int8).view(-1, ROW_BYTES)
            hashes = hash_rows(rows, self._coefficients).cpu()
            self._state.update(hashes.view(-1).view(torch.uint8).numpy().data)


def hash_rows(rows: torch.Tensor, coefficients: torch.Tensor) -> torch.Tensor:
    """The product of rows (int8 [num_rows, 4096]) and coefficients (int8 [4096, 16]) as int32, exactly."""
    if not rows.is_cuda:
        # CPUs multiply floats far faster than bytes
        hashes = torch.zeros(len(rows), NUM_COLUMNS, dtype=torch.int32)
        for start in range(0, ROW_BYTES, _EXACT_BYTES):
            part = slice(start, start + _EXACT_BYTES)
            hashes += (rows[:, part].float() @ coefficients[part].float()).int()
        return hashes
    num_rows = len(rows)
    if num_rows < _FEWEST_ROWS:
        rows = torch.nn.functional.pad(rows, (0, 0, 0, _FEWEST_ROWS - num_rows))
    return torch._int_mm(rows, coefficients)[:num_rows]


def _expand(key: bytes) -> tuple[bytes, torch.Tensor]:
    """The key of Poly1305 and the coefficients (int8 [4096, 16])."""
    stream = Cipher(algorithms.ChaCha20(key, nonce=bytes(16)), mode=None).encryptor()
    once = stream.update(bytes(64))[:KEY_BYTES]
    expanded = bytearray(stream.update(bytes(ROW_BYTES * NUM_COLUMNS)))
    # column by column, as the matrix units of all GPUs take them
    return once, torch.frombuffer(expanded, dtype=torch.int8).view(NUM_COLUMNS, ROW_BYTES).t()


def header_of(tensors: Iterable[DescribedTensor]) -> bytes:
    """The header before the bytes of the tensors."""
    header = json.dumps([[tensor.name, tensor.dtype, list(tensor.shape)] for tensor in tensors])
    return header.encode() + b"\n"


_DIGESTS: Mapping[str, Callable[[bytes, Iterable[DescribedTensor]], Digest]] = {
    POLY1305: StreamDigest,
    ROWS: RowDigest,
}
