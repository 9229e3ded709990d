"""A clock of the event loop that skips what a test would only wait for."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")


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

    async def skip_once(self, is_so: Callable[[], bool], *, during: asyncio.Future[T], seconds: float) -> T:
        """Skip when it is so, and return what there is at the end."""
        while not is_so() and not during.done():
            await asyncio.wait([during], timeout=0.02)
        self.skip(seconds)
        return await during
