"""Measures how long each phase of a step takes."""

import contextlib
import time
from collections.abc import Iterator


class Stopwatch:
    """Measures named phases of one step, from its creation on."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._phases: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the body of a `with` statement, in addition to others of that name."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._phases[name] = self._phases.get(name, 0.0) + time.monotonic() - started

    def seconds(self) -> dict[str, float]:
        """`step_time` and `time/PHASE_seconds`."""
        phases = {f"time/{name}_seconds": seconds for name, seconds in self._phases.items()}
        return {"step_time": time.monotonic() - self._started, **phases}
