"""Which elements of a part changed, as bytes: gaps or a bitmap, whichever is shorter. Pure.

Elements are compared by their bits: a NaN equals itself, and 0.0 differs from -0.0.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import torch

_SKIP = 255
"""A byte of the gaps that only says that so many elements did not change."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Encoding(StrEnum):
    """How the changed elements of a part are found."""

    GAPS = "gaps"
    """A byte for each: how many elements before it did not change, less than 255, after a byte of 255 for
    each 255 more of them."""
    BITMAP = "bitmap"
    """A bit for each element of the part, the lowest bit of a byte first."""
    ALL = "all"
    """Every element of the part is sent."""


@dataclass(frozen=True)
class EncodedPart:
    """The changed elements of a part: `index` (uint8) says where they are and `values` has their bits, as
    integers of their size."""

    encoding: Encoding
    index: torch.Tensor
    values: torch.Tensor


def bits_of(part: torch.Tensor, *, element_bytes: int) -> torch.Tensor:
    """The bytes of some elements (uint8) as a view of one integer for each element."""
    return part.view(_INTEGERS[element_bytes])


def encode(old: torch.Tensor, new: torch.Tensor) -> EncodedPart | None:
    """What turns `old` into `new` (integers [num_elements], on the CPU) in the fewest bytes. None if nothing
    changed."""
    # numpy does this several times as fast as torch on one core
    after = new.numpy()
    changed = old.numpy() != after
    num_changed = int(np.count_nonzero(changed))
    if num_changed == 0:
        return None
    bitmap_bytes = -(-len(after) // 8)
    num_saved = (len(after) - num_changed) * after.itemsize
    if num_changed < min(bitmap_bytes, num_saved):
        positions = np.flatnonzero(changed)
        gaps = _gaps(positions)
        if len(gaps) < min(bitmap_bytes, num_saved):
            return EncodedPart(Encoding.GAPS, torch.from_numpy(gaps), torch.from_numpy(after[positions]))
    if bitmap_bytes < num_saved:
        bitmap = np.packbits(changed, bitorder="little")
        return EncodedPart(Encoding.BITMAP, torch.from_numpy(bitmap), torch.from_numpy(after[changed]))
    return EncodedPart(Encoding.ALL, torch.empty(0, dtype=torch.uint8), new)


def positions_of(
    encoding: Encoding, index: torch.Tensor, *, num_changed: int, num_elements: int
) -> torch.Tensor | slice:
    """Where the changed elements are. Raises ValueError for an index that does not say where `num_changed` of
    `num_elements` are."""
    if encoding is Encoding.ALL:
        if num_changed != num_elements:
            raise ValueError("it does not have all elements of a part")
        return slice(None)
    if encoding is Encoding.GAPS:
        steps = torch.where(index == _SKIP, _SKIP, index.to(torch.int64) + 1)
        positions = steps.cumsum(0)[index != _SKIP] - 1
    else:
        bits = (index.unsqueeze(1) >> torch.arange(8, dtype=torch.uint8, device=index.device)) & 1
        positions = bits.view(-1).nonzero().view(-1)
    if len(positions) != num_changed:
        raise ValueError(f"its index has {len(positions)} elements and not {num_changed}")
    if num_changed and int(positions[-1]) >= num_elements:
        raise ValueError("its index goes beyond a part")
    return positions


def _gaps(positions: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    gaps = np.diff(positions, prepend=-1) - 1
    ends = np.cumsum(gaps // _SKIP + 1) - 1
    index = np.full(int(ends[-1]) + 1, _SKIP, dtype=np.uint8)
    index[ends] = gaps % _SKIP
    return index
