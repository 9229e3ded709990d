"""How long engines that could have worked had nothing to do. The clock is the caller's."""

import threading
from collections import defaultdict


class IdleTime:
    """Seconds by engine. May be taken in another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle_since: dict[str, float] = {}
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def note(self, engine: str, *, is_idle: bool, now: float) -> None:
        """From now on the engine is idle, or is not."""
        with self._lock:
            if is_idle:
                self._idle_since.setdefault(engine, now)
            elif (since := self._idle_since.pop(engine, None)) is not None:
                self._seconds[engine] += now - since

    def add(self, engine: str, seconds: float) -> None:
        """The engine was idle for so long beside what is noted."""
        with self._lock:
            self._seconds[engine] += seconds

    def take(self, *, now: float) -> dict[str, float]:
        """Seconds since they were last taken, of engines that had any. One that is idle now counts until
        now."""
        with self._lock:
            for engine, since in self._idle_since.items():
                self._seconds[engine] += now - since
                self._idle_since[engine] = now
            taken, self._seconds = self._seconds, defaultdict(float)
        return {engine: seconds for engine, seconds in taken.items() if seconds > 0}
