"""Two ways of doing the same thing, in turn: A B A B ..., and how many times as much A takes as B.

The speed of a machine changes, and others use it too. Both runs of a pair meet nearly the same conditions, so
their ratio varies less than either number. The spread of the ratios over the pairs shows how reliable it is.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

Amounts = Mapping[str, float]
"""What one run took: quantity, with its unit in the name -> amount, above 0."""


@dataclass(frozen=True)
class Way:
    """One way of doing the thing. `run` does it once and measures it.

    It gets the number of its pair, from 0, because both runs of a pair do the same work.
    """

    name: str
    run: Callable[[int], Amounts]


@dataclass(frozen=True)
class Pair:
    """What one run of each way took; the second run follows right after the first."""

    first: Amounts
    second: Amounts


@dataclass(frozen=True)
class Comparison:
    """One quantity over all pairs. `first` and `second` are medians, for the size; `ratios` are how
    many times as much the first way took as the second, pair by pair."""

    quantity: str
    first: float
    second: float
    ratios: Sequence[float]

    @property
    def ratio(self) -> float:
        """The median of the pairs' ratios."""
        return statistics.median(self.ratios)


def alternate(first: Way, second: Way, *, num_pairs: int) -> Iterator[Pair]:
    """Run both ways in turn and yield each pair as soon as it is measured."""
    for number in range(num_pairs):
        yield Pair(first.run(number), second.run(number))


def compare(pairs: Sequence[Pair]) -> list[Comparison]:
    """One comparison for each quantity, in the order of the quantities.

    Raises ValueError without pairs, when a quantity is missing in a run, and for amounts that are not above
    0.
    """
    if not pairs:
        raise ValueError("there is nothing to compare without pairs")
    runs = [amounts for pair in pairs for amounts in (pair.first, pair.second)]
    quantities = list(runs[0])
    for amounts in runs:
        if amounts.keys() != runs[0].keys():
            raise ValueError(f"a run measured {', '.join(amounts)} and another one {', '.join(quantities)}")
        if min(amounts.values()) <= 0:
            raise ValueError(f"a run took nothing, so there is no ratio: {dict(amounts)}")
    return [_compare_one(quantity, pairs) for quantity in quantities]


def _compare_one(quantity: str, pairs: Sequence[Pair]) -> Comparison:
    firsts = [pair.first[quantity] for pair in pairs]
    seconds = [pair.second[quantity] for pair in pairs]
    return Comparison(
        quantity=quantity,
        first=statistics.median(firsts),
        second=statistics.median(seconds),
        ratios=[first / second for first, second in zip(firsts, seconds, strict=True)],
    )
