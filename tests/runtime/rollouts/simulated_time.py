"""An event loop in which time is simulated."""

import asyncio
import selectors


class SimulatedTime(selectors.SelectSelector):
    """In it a loop that has nothing to do but wait has waited at once. `now` is in the loop's seconds."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready after so long."""
        assert timeout is not None, "the run waits for nothing"
        self.now += max(0.0, timeout)
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """A loop in simulated time."""

    def __init__(self) -> None:
        self._simulated = SimulatedTime()
        super().__init__(self._simulated)

    def time(self) -> float:
        """The simulated one."""
        return self._simulated.now
