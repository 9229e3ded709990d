"""What a turn and an episode took, of the seconds of short and long ones. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

SHORT_TURNS, LONG_TURNS = 2, 22
"""Of episodes. What a long one takes beyond a short one is that of its turns, of which later ones read a
longer chat."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """Seconds an episode, of one kind in one round."""

    short: float
    long: float
    long_at_once: float
    """Where several are played at a time: the seconds of all, by their number."""

    @property
    def turn(self) -> float:
        """Seconds of a turn."""
        return (self.long - self.short) / (LONG_TURNS - SHORT_TURNS)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Of one kind: medians over the rounds."""

    turn: float
    """Seconds of a turn, one episode at a time."""
    ratio: float
    """How many times as long a turn takes as that of the kind beside it, in the same round."""
    short: float
    """Seconds of a short episode, with its beginning and its end."""
    turn_at_once: float
    """Seconds of a turn where several long episodes are played at a time, with its share of their beginning
    and their end."""


def figures_of(rounds: Sequence[Round], *, beside: Sequence[Round]) -> Figures:
    """The figures of a kind; `beside` are those of the kind with which it is compared, round by round."""
    return Figures(
        turn=median(each.turn for each in rounds),
        ratio=median(each.turn / other.turn for each, other in zip(rounds, beside, strict=True)),
        short=median(each.short for each in rounds),
        turn_at_once=median(each.long_at_once / LONG_TURNS for each in rounds),
    )


def table(found: Mapping[str, Figures], *, at_once: int) -> str:
    """The rows of a Markdown table, a kind in each."""
    lines = [
        f"| kind | a turn, ms | beside a coroutine | an episode of {SHORT_TURNS} turns, ms | a turn, ms, "
        f"{at_once} episodes at a time |",
        "|---|---:|---:|---:|---:|",
    ]
    for kind, figures in found.items():
        milliseconds = (1000 * value for value in (figures.turn, figures.short, figures.turn_at_once))
        turn, short, turn_at_once = (f"{value:.1f}" for value in milliseconds)
        lines.append(f"| {kind} | {turn} | {figures.ratio:.2f} | {short} | {turn_at_once} |")
    return "\n".join(lines)
