"""What the sentences about a standstill have in common. Pure."""

STILL_SECONDS = 10.0
"""From when on a generation or scores that stand still are told of. Rank 0's next report and the operator's
next poll follow within 5 s."""


def rounded_down(seconds: float) -> int:
    """Whole seconds for a sentence, the coarser the more they are, so that the operator need not write it
    into the status every second."""
    unit = 10 if seconds < 60 else 60 if seconds < 600 else 300
    return int(seconds // unit) * unit
