"""A wait for what has no event of its own."""

import asyncio
from collections.abc import Callable
from typing import Any


async def until(check: Callable[[], Any]) -> None:
    """Return when `check` is true; TimeoutError where that never comes."""
    async with asyncio.timeout(60):
        while not check():  # noqa: ASYNC110 - any state of a fake may be waited for
            await asyncio.sleep(0.001)
