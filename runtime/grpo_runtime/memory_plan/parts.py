"""What the plans of GPUs and of hosts share: their lines, and the bytes of a number. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from grpo_api.resolve import resolve
from grpo_api.v1alpha1.job import GRPOJob
from grpo_api.v1alpha1.spec import Dtype

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


def compute_bytes(job: GRPOJob) -> int:
    """c of `formulas`: bytes of a number in the forward pass, and as engines hold it."""
    return 2 if resolve(job).model.dtype is Dtype.BFLOAT16 else 4
