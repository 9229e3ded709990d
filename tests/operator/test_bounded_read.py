"""Answers of any length, in whatever pieces they come."""

import pytest

from grpo_operator.cluster.bounded_read import read_at_most


class FakeStream:
    """Gives one piece for each read, as a stream does whose other end is slow."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    async def read(self, num_bytes: int) -> bytes:
        if not self._pieces:
            return b""
        piece = self._pieces.pop(0)
        if len(piece) > num_bytes:
            self._pieces.insert(0, piece[num_bytes:])
        return piece[:num_bytes]


@pytest.mark.parametrize(
    ("pieces", "read"),
    [((b"ab", b"cd"), b"abcd"), ((b"ab", b"cdef", b"gh"), b"abcde"), ((), b"")],
    ids=["in two pieces", "longer than the limit", "empty"],
)
async def test_all_pieces_are_read_up_to_the_limit(pieces: tuple[bytes, ...], read: bytes):
    assert await read_at_most(FakeStream(*pieces), num_bytes=5) == read
