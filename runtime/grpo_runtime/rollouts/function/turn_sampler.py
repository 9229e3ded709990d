"""Asks the engines for turns: for each at once, or, where they take one call at a time, for those that are
ready together.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from grpo_runtime.rollouts.interface import Engines, GenerateRequest, Rollout

QUIET_SECONDS = 0.5
"""Engines that take one call at a time wait for further turns until none has come for so long. A turn that
just missed a call waits for the whole of it, which mostly takes longer."""


@dataclass(eq=False)
class _Turn:
    """A turn that is asked for. `rollout` is cancelled when nobody waits for it any more."""

    number: int
    request: GenerateRequest
    rollout: asyncio.Future[Rollout] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class TurnSampler:
    """Samples the turns of all completions that are being made. A turn waits for no other one, but for the
    call before where engines take one at a time (`Engines.is_concurrent`)."""

    def __init__(
        self,
        engines: Engines,
        *,
        quiet_seconds: float = QUIET_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engines = engines
        self._clock = clock
        self._quiet_seconds = quiet_seconds
        self._numbers = itertools.count()
        self._joined: set[int] = set()
        self._asked: list[_Turn] = []
        self._changed = asyncio.Event()
        """Set whenever a turn is asked for, or fewer can be."""
        self._calling: asyncio.Task[None] | None = None

    @contextmanager
    def joined(self) -> Iterator[int]:
        """While a completion may ask for turns; gives its number, which is the session of its requests.
        The turns of a call are in the order of the numbers. Once every completion that has joined waits for a
        turn, a call need not wait for others."""
        number = next(self._numbers)
        self._joined.add(number)
        try:
            yield number
        finally:
            self._joined.discard(number)
            self._changed.set()

    async def sample(self, number: int, request: GenerateRequest) -> Rollout:
        """The next turn of a completion that has joined. Raises what `Engines.generate` raises."""
        request = replace(request, session=number)
        if self._engines.is_concurrent:
            [rollout] = await self._engines.generate([request], stays_awake=True)
            return rollout
        turn = _Turn(number, request)
        self._asked.append(turn)
        self._changed.set()
        if self._calling is None or self._calling.done():
            self._calling = asyncio.create_task(self._call_while_asked())
        return await turn.rollout

    async def _call_while_asked(self) -> None:
        while self._wanted():
            await self._wait_for_others()
            await self._call(self._taken())

    async def _wait_for_others(self) -> None:
        while len(self._wanted()) < len(self._joined):
            self._changed.clear()
            try:
                async with asyncio.timeout(self._quiet_seconds):
                    await self._changed.wait()
            except TimeoutError:
                return

    def _wanted(self) -> list[_Turn]:
        self._asked = [turn for turn in self._asked if not turn.rollout.done()]
        return self._asked

    def _taken(self) -> list[_Turn]:
        """What the next call is for: turns of one kind, as `Engines.generate` takes them."""
        taken: list[_Turn] = []
        left: list[_Turn] = []
        for turn in self._wanted():
            is_first_kind = turn.request.is_evaluation == self._asked[0].request.is_evaluation
            (taken if is_first_kind else left).append(turn)
        self._asked = left
        return sorted(taken, key=lambda turn: turn.number)

    async def _call(self, turns: list[_Turn]) -> None:
        """Ask for these; given up once nobody waits for any of them."""
        if not turns:
            return
        requests = [turn.request for turn in turns]
        begun = self._clock()
        call = asyncio.ensure_future(self._engines.generate(requests, stays_awake=True))
        # ends before the call when every turn is cancelled
        waiting = asyncio.gather(*(turn.rollout for turn in turns), return_exceptions=True)
        either: set[asyncio.Future[Any]] = {call, waiting}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not call.done():
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            return
        error = None if call.cancelled() else call.exception()
        for place, turn in enumerate(turns):
            if turn.rollout.done():
                continue
            if call.cancelled():
                turn.rollout.cancel()
            elif error is not None:
                turn.rollout.set_exception(error)
            else:
                seconds = self._clock() - begun
                turn.rollout.set_result(replace(call.result()[place], sampling_seconds=seconds))
