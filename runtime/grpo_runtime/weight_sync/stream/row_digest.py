"""A tag that a GPU computes where the weights are: a universal hash of rows, then Poly1305 of the hashes.

Poly1305 alone runs on one core of the CPU, slower than weights move between GPUs. Here the stream is cut into
rows of 4096 bytes, the last one filled up with zeros. A row x of signed bytes becomes the 16 numbers x A,
where A [4096, 16] are random signed bytes: the multilinear hash of Carter and Wegman ("Universal classes of
hash functions", 1979), over the integers. What is left, 64 bytes of a row, is authenticated by Poly1305 under
a key that is used once, as UMAC does it (Black, Halevi, Krawczyk, Krovetz, Rogaway: "UMAC: Fast and secure
message authentication", CRYPTO '99).

Whoever does not know the key forges a stream of n rows with a probability of at most

    2^-128 + 8 (4 n + ceil(h / 16)) / 2^106        h bytes of header, RFC 8439

Two rows that differ at byte j have the same number in a column only if sum_j A_j (x_j - y_j) = 0, which holds
for at most one of the 256 values of A_j whatever the others are; the 16 columns are independent. The second
term is that of Poly1305 for the hashes, and is the larger one: 2^-77 for 64 GiB. A and the key of Poly1305
are expanded from the key of the copy by ChaCha20, the key as in RFC 8439, section 2.6.

The sums are below 2^26, so that every way to compute them is exact: a CPU and a GPU agree to the last bit.
"""

from collections.abc import Iterable

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.poly1305 import Poly1305

from grpo_runtime.weight_sync.stream.digest import KEY_BYTES, DescribedTensor, header_of

ROW_BYTES = 4096
NUM_COLUMNS = 16
_FEWEST_ROWS = 17
"""Of a product of bytes on a GPU, in torch."""
_EXACT_BYTES = 1024
"""So many products of signed bytes add up to no more than 2^24, which float32 holds exactly."""


class RowDigest:
    """The tag on the device where the bytes are; see `Digest`."""

    def __init__(self, key: bytes, tensors: Iterable[DescribedTensor]) -> None:
        once, coefficients = _expand(key)
        self._state = Poly1305(once)
        self._state.update(header_of(tensors))
        self._coefficients = coefficients
        self._rest = torch.empty(0, dtype=torch.uint8)

    def update(self, data: torch.Tensor) -> None:
        """See `Digest`. Waits for the device."""
        if len(self._rest):
            data = torch.cat([self._rest.to(data.device), data])
        end = len(data) - len(data) % ROW_BYTES
        self._rest = data[end:].clone()
        self._take(data[:end])

    def tag(self) -> bytes:
        """See `Digest`."""
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
