"""How many requests of a kind are under way at once, so that one namespace leaves room for the others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class FairLimit:
    """At most `num` requests at once, and at most `num_of_a_namespace` of one namespace: however many of its
    requests wait, and however long they take, one of another namespace waits for no more than these."""

    def __init__(self, num: int, *, num_of_a_namespace: int) -> None:
        self._num_of_a_namespace = num_of_a_namespace
        self._all = asyncio.Semaphore(num)
        self._of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """Of each namespace with requests under way or that wait."""

    @asynccontextmanager
    async def under_way(self, namespace: str) -> AsyncIterator[None]:
        """A request about something in this namespace; waits until there may be one more."""
        of_namespace = self._of.setdefault(namespace, asyncio.Semaphore(self._num_of_a_namespace))
        async with of_namespace, self._all:
            yield
