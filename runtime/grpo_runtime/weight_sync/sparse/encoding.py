"""Which elements of a part changed, as bytes: gaps or a bitmap, whichever is shorter. Pure.

Elements are compared by their bits: a NaN equals itself, and 0.0 differs from -0.0.
"""

from dataclasses import dataclass
from enum import StrEnum

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
    """What turns `old` into `new` (integers [num_elements]) in the fewest bytes. None if nothing changed."""
    changed = old != new
    num_changed = int(changed.sum())
    if num_changed == 0:
        return None
    empty = torch.empty(0, dtype=torch.uint8, device=new.device)
    size = new.element_size()
    bitmap_bytes = -(-len(new) // 8)
    num_saved = (len(new) - num_changed) * size
    if num_changed < min(bitmap_bytes, num_saved):
        positions = changed.nonzero().view(-1)
        gaps = _gaps(positions)
        if len(gaps) < min(bitmap_bytes, num_saved):
            return EncodedPart(Encoding.GAPS, gaps, new[positions])
    if bitmap_bytes < num_saved:
        return EncodedPart(Encoding.BITMAP, _bitmap(changed), new[changed])
    return EncodedPart(Encoding.ALL, empty, new)


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


def _gaps(positions: torch.Tensor) -> torch.Tensor:
    gaps = torch.diff(positions, prepend=positions.new_tensor([-1])) - 1
    ends = (gaps // _SKIP + 1).cumsum(0) - 1
    index = torch.full((int(ends[-1]) + 1,), _SKIP, dtype=torch.uint8, device=positions.device)
    index[ends] = (gaps % _SKIP).to(torch.uint8)
    return index


def _bitmap(changed: torch.Tensor) -> torch.Tensor:
    padded = torch.nn.functional.pad(changed.view(torch.uint8), (0, -len(changed) % 8))
    shifts = torch.arange(8, dtype=torch.uint8, device=changed.device)
    return (padded.view(-1, 8) << shifts).sum(1, dtype=torch.uint8)
