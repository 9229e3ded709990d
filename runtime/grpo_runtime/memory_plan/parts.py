"""The lines of a plan. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class Part:
    """One line of a plan: what the bytes are for."""

    name: str
    num_bytes: int


def sum_of(parts: Iterable[Part]) -> int:
    """Bytes of all of them."""
    return sum(part.num_bytes for part in parts)


def in_gib(num_bytes: int) -> str:
    """`12.3 GiB`."""
    return f"{num_bytes / GIB:.1f} GiB"
