"""Measures how long each phase of a step takes."""

import contextlib
import time
from collections.abc import Callable, Iterator


class Stopwatch:
    """Measures named phases of one step, from its creation on. `clock` says the time in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._phases: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the body of a `with` statement, in addition to others of that name."""
        started = self._clock()
        try:
            yield
        finally:
            self._phases[name] = self._phases.get(name, 0.0) + self._clock() - started

    def seconds(self) -> dict[str, float]:
        """`step_time` and `time/PHASE_seconds`."""
        phases = {f"time/{name}_seconds": seconds for name, seconds in self._phases.items()}
        return {"step_time": self._clock() - self._started, **phases}
