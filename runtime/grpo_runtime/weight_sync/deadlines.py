"""How long each phase of a sync may take. Pure.

One frozen engine must not hold all others until the deadline of the whole sync, which is minutes because a
large model may take that long to load.
"""

QUICK_PHASES = frozenset({"pause", "start", "resume", "admit"})
"""They move no weights: an engine that does not answer at once is not well."""
SHORTEST_SECONDS = 12.0
"""An engine that is lost between two phases is found when it misses the next one: within 15 s in all."""
SHORTEST_STALL_SECONDS = 10.0
ANSWER_SECONDS = 2.0
"""What the answer of an engine may take longer than the buffer or the member that it waits for."""
_TIMES_LONGER = 5.0
_LONGEST_SHARE = 0.25
_FORGETTING = 0.5


class Deadlines:
    """The deadlines of all syncs of a fleet, which learn from one another.

    A quick phase has 12 seconds. Any other has five times what it took when all went well, and at least 12
    seconds; before that the whole deadline. None has more than that.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self._took: dict[str, float] = {}

    def of(self, phase: str) -> float:
        """Seconds that the phase may take now."""
        if phase in QUICK_PHASES:
            return min(SHORTEST_SECONDS, self.timeout_seconds)
        if phase not in self._took:
            return self.timeout_seconds
        return min(max(SHORTEST_SECONDS, _TIMES_LONGER * self._took[phase]), self.timeout_seconds)

    def stall_seconds(self) -> float:
        """How long a buffer, or a member of a group that is awaited, may take now: ten seconds, or five times
        the last transfer. At most a quarter of the whole deadline, so that there is time left for another
        group."""
        wanted = max(SHORTEST_STALL_SECONDS, _TIMES_LONGER * self._took.get("transfer", 0.0))
        return min(wanted, self.timeout_seconds * _LONGEST_SHARE)

    def meeting_seconds(self) -> float:
        """How long the members of a group may take to meet: as long as a buffer once that has worked. Before,
        three times as long, because a library finds its network then."""
        stall = self.stall_seconds()
        return stall if "meeting" in self._took else min(3 * stall, self.timeout_seconds * _LONGEST_SHARE)

    def note(self, phase: str, seconds: float) -> None:
        """All engines of a sync did the phase within this time. A shorter one counts only by and by."""
        self._took[phase] = max(seconds, _FORGETTING * self._took.get(phase, 0.0))
