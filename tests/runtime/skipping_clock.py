"""A clock of the event loop that skips what a test would only wait for."""

import asyncio

import pytest


class SkippingClock:
    """The clock of the running loop, on which the deadlines of its calls are. It may skip time: deadlines can
    then be so long that a machine that is busy with other tests reaches none of the others."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        now, self._skipped = loop.time, 0.0
        monkeypatch.setattr(loop, "time", lambda: now() + self._skipped)

    def skip(self, seconds: float) -> None:
        """What begins to wait after this does not notice it."""
        self._skipped += seconds
