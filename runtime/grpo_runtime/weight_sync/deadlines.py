"""How long each phase of a sync may take. Pure.

One frozen engine must not hold all others until the deadline of the whole sync, which is minutes because a
large model may take that long to load.
"""

SHORT_SECONDS = 15.0
QUICK_PHASES = frozenset({"pause", "start", "resume", "admit"})
"""They move no weights: an engine that does not answer at once is not well."""
_TIMES_LONGER = 5.0


class PhaseDeadlines:
    """A quick phase has 15 seconds. Any other has five times what it took the last time that all went well,
    and at least 15 seconds; before that the whole deadline. None has more than that."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._took: dict[str, float] = {}

    def of(self, phase: str) -> float:
        """Seconds that the phase may take now."""
        if phase in QUICK_PHASES:
            return min(SHORT_SECONDS, self._timeout_seconds)
        if phase not in self._took:
            return self._timeout_seconds
        return min(max(SHORT_SECONDS, _TIMES_LONGER * self._took[phase]), self._timeout_seconds)

    def note(self, phase: str, seconds: float) -> None:
        """All engines did the phase within this time."""
        self._took[phase] = seconds
