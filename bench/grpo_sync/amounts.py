"""What was measured, and the arithmetic on it. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Amounts = Mapping[str, float]
"""Seconds of one sync by phase, with the floors that were measured right before it: `FLOORS`."""

COPY, BROADCAST = "floor_copy", "floor_broadcast"
FLOORS = (COPY, BROADCAST)
GOAL_FOR_ONE, GOAL_FOR_SEVERAL = 1.15, 1.3
"""How many times as long as its floor a sync may take: to one receiver, and to several of them."""
GOAL_OF_ORCHESTRATION = {50: 0.05, 95: 0.15}
"""Percentile of the syncs -> seconds."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """The syncs of a model to receivers without vLLM. The first one connects and warms up: it is apart.

    `floor` is the one that the way is compared with; `goal` the ratio to it that is wanted, if any.
    """

    size_mb: int
    dtype: str
    num_receivers: int
    way: str
    num_bytes: int
    num_tensors: int
    floor: str
    goal: float | None
    first: Amounts
    rounds: Sequence[Amounts]

    def median(self, quantity: str) -> float | None:
        """Of the rounds; None when this way has no such phase."""
        return median(self.rounds, quantity)

    def ratios(self, floor: str) -> list[float]:
        """How many times as long as the floor each sync took, without loading."""
        return [amounts["total"] / amounts[floor] for amounts in self.rounds]

    @property
    def gb_per_second(self) -> float:
        """To each receiver, at the median total."""
        return self.num_bytes / 1e9 / statistics.median(amounts["total"] for amounts in self.rounds)


@dataclass(frozen=True, kw_only=True)
class EngineCase:
    """The syncs of a fleet of vLLM engines; see `Case`. The phases are those of a SyncReport, and `wall` is
    the time of the whole call."""

    size_mb: int
    num_engines: int
    backend: str
    num_bytes: int
    floor: str
    first: Amounts
    rounds: Sequence[Amounts]

    @property
    def goal(self) -> float:
        """Of `ratios`."""
        return goal_for(self.num_engines)

    def ratios(self) -> list[float]:
        """How many times as long as the floor the transfer took. Packing begins before it and goes on beside
        it."""
        return [amounts["transfer"] / amounts[self.floor] for amounts in self.rounds]

    def orchestration(self) -> list[float]:
        """The seconds of each sync that are neither packing nor transfer nor loading."""
        return [orchestration(amounts) for amounts in self.rounds]


def floor_of(num_receivers: int, *, is_network: bool) -> str:
    """What a backend is compared with: one copy into shared memory serves a receiver; what serves several, or
    goes over a network, is compared with a broadcast."""
    return COPY if num_receivers == 1 and not is_network else BROADCAST


def goal_for(num_receivers: int) -> float:
    """The ratio to the floor that is wanted."""
    return GOAL_FOR_ONE if num_receivers == 1 else GOAL_FOR_SEVERAL


def load(amounts: Amounts) -> float:
    """The part of `finish` in which an engine loads.

    vLLM does not report it. `start` goes the same way to the same worker and does nothing there, so what
    `finish` takes longer is the loading.
    """
    return max(0.0, amounts["finish"] - amounts["start"])


def orchestration(amounts: Amounts) -> float:
    """Everything of a fleet's sync that is neither packing nor transfer nor loading."""
    phases = ("pause", "init", "start", "finish", "resume", "verify", "admit")
    return sum(amounts[phase] for phase in phases) - load(amounts)


def median(rounds: Sequence[Amounts], quantity: str) -> float | None:
    """The median over the rounds; None when the quantity was not measured."""
    if any(quantity not in amounts for amounts in rounds):
        return None
    return statistics.median(amounts[quantity] for amounts in rounds)


def percentile(values: Sequence[float], percent: int) -> float:
    """Interpolated between the two nearest values."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
