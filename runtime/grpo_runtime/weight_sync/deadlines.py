"""How long each phase of a sync may take. Pure.

One hung engine must not hold all others until the deadline of the whole sync, which is minutes because a
large model may take that long to load.
"""

QUICK_PHASES = frozenset({"pause", "start", "resume", "admit"})
"""They move no weights: an engine that does not answer at once is not well."""
SHORTEST_SECONDS = 12.0
"""An engine that is lost between two phases is found when it misses the next one: within 15 s in all."""
SHORTEST_STALL_SECONDS = 10.0
SHORTEST_LAG_SECONDS = 30.0
"""How much longer an engine may take than another: more than kernels that only it has to compile."""
ANSWER_SECONDS = 4.0
"""How much longer the answer of an engine may take than the buffer or the member that it waits for."""
_TIMES_LONGER = 5.0
_LONGEST_FRACTION = 0.25
_FORGETTING = 0.5


class Deadlines:
    """The deadlines of all syncs of a fleet, which learn from one another.

    A quick phase has 12 seconds. Any other has five times what it took when all went well, and at least 12
    seconds; before that the whole deadline. None has more than that.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self._took_now: dict[str, float] = {}
        self._took_before: dict[str, float] = {}

    def new_weights(self) -> None:
        """From now on syncs are of newer weights, and shorter times count only by and by. Until then the
        longest counts: engines may be synced one by one."""
        for phase, seconds in self._took_now.items():
            self._took_before[phase] = max(seconds, _FORGETTING * self._took_before.get(phase, 0.0))
        self._took_now = {}

    def note(self, phase: str, seconds: float) -> None:
        """All engines of a sync did the phase within this time."""
        self._took_now[phase] = max(seconds, self._took_now.get(phase, 0.0))

    def of(self, phase: str) -> float:
        """Seconds that the phase may take now."""
        if phase in QUICK_PHASES:
            return min(SHORTEST_SECONDS, self.timeout_seconds)
        took = self._took(phase)
        if took is None:
            return self.timeout_seconds
        return min(max(SHORTEST_SECONDS, _TIMES_LONGER * took), self.timeout_seconds)

    def lag_seconds(self, took: float) -> float:
        """How much longer engines may take for a phase that one of them has done after `took` seconds: a
        first load or probe has the whole deadline, and who hangs in it must not hold the others as long."""
        return max(SHORTEST_LAG_SECONDS, _TIMES_LONGER * took)

    def stall_seconds(self) -> float:
        """How long a buffer, or a member of a group that is awaited, may take now: ten seconds, or five times
        the last transfer. At most a quarter of the whole deadline, so that there is time left for another
        group."""
        wanted = max(SHORTEST_STALL_SECONDS, _TIMES_LONGER * (self._took("transfer") or 0.0))
        return min(wanted, self.timeout_seconds * _LONGEST_FRACTION)

    def shared_seconds(self) -> float:
        """How long a transfer to several engines may take now, however steady its progress: ten seconds, or
        five times the last one of that kind. At most a quarter of the whole deadline, or twice the last one
        where that is more. The first one has the whole deadline."""
        took = self._took("shared transfer")
        if took is None:
            return self.timeout_seconds
        wanted = max(SHORTEST_STALL_SECONDS, _TIMES_LONGER * took)
        longest = max(self.timeout_seconds * _LONGEST_FRACTION, 2 * took)
        return min(wanted, longest, self.timeout_seconds)

    def meeting_seconds(self) -> float:
        """How long the members of a group may take to meet: as long as a buffer once that has worked. Before,
        three times as long, because a library finds its network then."""
        stall = self.stall_seconds()
        has_met = self._took("meeting") is not None
        return stall if has_met else min(3 * stall, self.timeout_seconds * _LONGEST_FRACTION)

    def _took(self, phase: str) -> float | None:
        times = [took[phase] for took in (self._took_now, self._took_before) if phase in took]
        return max(times, default=None)


def not_done_within(seconds: float) -> str:
    """Message about a missed deadline of so many seconds."""
    said = f"{seconds:.3g}" if seconds < 100 else f"{seconds:.0f}"
    return f"not done within {said} s"
