"""Random numbers that the seed of a completion decides, so that every way of training meets the same ones."""

import hashlib
import statistics
import struct
from dataclasses import dataclass

_KEYS = 2**64
_NUM_PLACES = 10_000


@dataclass(frozen=True, kw_only=True)
class BoundedPareto:
    """The Pareto distribution with the tail index `shape`, cut off at `highest`: a number is above x with a
    probability that falls as x to the power of -`shape`, from 1 at `lowest` to 0 at `highest`."""

    lowest: float
    highest: float
    shape: float

    def of(self, seed: int) -> float:
        """The number of a completion with this seed."""
        digest = hashlib.sha256(struct.pack("<q", seed)).digest()
        return self.at(int.from_bytes(digest[:8], "little") / _KEYS)

    def at(self, share: float) -> float:
        """The number that a `share` (0 to 1) of all are below."""
        kept = 1 - share * (1 - (self.lowest / self.highest) ** self.shape)
        return float(self.lowest * kept ** (-1 / self.shape))

    @property
    def mean(self) -> float:
        """The mean, summed up numerically because the formula has a case of its own for shape 1."""
        return statistics.fmean(self.at((place + 0.5) / _NUM_PLACES) for place in range(_NUM_PLACES))

    def __str__(self) -> str:
        bounds = f"from {self.lowest:g} to {self.highest:g}"
        return f"bounded Pareto {bounds}, shape {self.shape:g}, mean {self.mean:.3g}"
