"""How long it takes from what happens to a job to the status that shows it. Pure: `now`, in seconds of a
clock that never goes back, is a parameter."""

from grpo_operator.observe.cache import Key


class StatusDelays:
    """Since when jobs have had something that their status may not show yet.

    A status shows what had happened before the look at the job that it was made from. So each look takes what
    has happened so far, and what happens meanwhile waits for the next look. A status that could not be
    written is made anew by the next look, and all of that time counts.
    """

    def __init__(self) -> None:
        self._happened: dict[Key, float] = {}
        self._seen: dict[Key, float] = {}
        """Of those that a look has seen, and whose status is not written yet."""

    def mark_event(self, key: Key, *, now: float) -> None:
        """Something has happened to the job. Of several events the first counts."""
        self._happened.setdefault(key, now)

    def mark_look(self, key: Key) -> None:
        """A look at the job begins."""
        happened = self._happened.pop(key, None)
        if happened is not None:
            self._seen.setdefault(key, happened)

    def mark_written(self, key: Key, *, now: float) -> float | None:
        """The status of the last look is written. Returns the seconds since what it shows has happened; None
        when nothing had."""
        happened = self._seen.pop(key, None)
        return None if happened is None else now - happened

    def mark_same(self, key: Key) -> None:
        """The last look found nothing to write."""
        self._seen.pop(key, None)

    def restart(self, *, now: float) -> None:
        """What has happened before counts from now."""
        self._happened = dict.fromkeys(self._happened, now)
