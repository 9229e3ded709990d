"""The gateway: sessions by their keys, and the calls that they make of the engines."""

import asyncio
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Never, TypeVar

from grpo_runtime.gateway.chat_request import ChatRequest, TokenRequest
from grpo_runtime.gateway.refusals import UnknownKeyError
from grpo_runtime.gateway.session import Answer, ChatModel, Session
from grpo_runtime.rollouts.function.turn_sampler import TurnSampler
from grpo_runtime.rollouts.interface import RequestRefusedError

logger = logging.getLogger(__name__)

_REMEMBERED_ANSWERS = 4
"""The newest answers of a session are kept for a client that did not get them and asks again."""

T = TypeVar("T")


@dataclass(eq=False)
class _Open:
    """A session that is open, and the number under which its turns are asked for."""

    session: Session
    number: int
    calls: dict[asyncio.Task[Answer], str] = field(default_factory=dict)
    """Those that are being answered, each with what it asked."""
    answers: OrderedDict[str, Answer] = field(default_factory=OrderedDict)
    """The newest, by what was asked."""
    beside: list["_Open"] = field(default_factory=list)
    """The other sessions of its agent."""
    failed: asyncio.Future[Never] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Has the error of the engines, once they failed for one of its calls."""

    def newest(self, identity: str) -> asyncio.Task[Answer] | None:
        """The last call that asks this, of those that are being answered."""
        return next((call for call, of in reversed(self.calls.items()) if of == identity), None)


class Gateway:
    """Answers the calls of agents by what the engines sample."""

    def __init__(
        self, model: ChatModel, sampler: TurnSampler, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.model = model
        self._clock = clock
        self._sampler = sampler
        self._open: dict[str, _Open] = {}

    async def play(self, session: Session, agent: Callable[[str], Awaitable[T]]) -> T | None:
        """Run an agent, which gets the key of the session. The session is open for as long, and what it
        still asks at the end is not answered. None where it has not ended within `limits.seconds` of the
        session: the calls that are being sampled then are answered, and the agent is cancelled.

        Raises what the engines raise for one of its calls, which ends the agent, unless they refuse that call
        alone.
        """
        key = secrets.token_urlsafe(24)
        with self._sampler.joined() as number:
            found = self._open[key] = _Open(session, number)
            playing = asyncio.ensure_future(agent(key))
            try:
                either: set[asyncio.Future[Any]] = {playing, found.failed}
                seconds = session.limits.seconds
                done, _ = await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    last = asyncio.gather(*_end_late([found, *found.beside]), return_exceptions=True)
                    await asyncio.wait({*either, last}, return_when=asyncio.FIRST_COMPLETED)
                if found.failed.done():
                    return found.failed.result()
                return playing.result() if playing.done() else None
            finally:
                del self._open[key]
                await _give_up([playing, found.failed, *found.calls])

    @asynccontextmanager
    async def beside(self, key: str, session: Session) -> AsyncIterator[str]:
        """Open another session of the agent that has the session with this key, for as long; gives the key of
        the other one. What it still asks at the end is not answered."""
        first = self._find(key)
        other = secrets.token_urlsafe(24)
        found = self._open[other] = _Open(session, first.number, failed=first.failed)
        first.beside.append(found)
        try:
            yield other
        finally:
            first.beside.remove(found)
            del self._open[other]
            await _give_up([*found.calls])

    def session(self, key: str) -> Session:
        """The open session with this key. Raises UnknownKeyError."""
        return self._find(key).session

    async def answer(
        self, key: str, asked: ChatRequest | TokenRequest, *, identity: str, is_sent_again: bool = False
    ) -> Answer:
        """The answer to a call of the session with this key, once the engines have sampled it. A call that
        `is_sent_again`, with the same `identity`, takes the place of the last that was not: that one is given
        up, or its answer is given once more.

        Raises UnknownKeyError, LimitReachedError, BadFieldError, and what the engines raise; CancelledError
        in a call that is given up.
        """
        found = self._find(key)
        if is_sent_again:
            if (known := found.answers.get(identity)) is not None:
                return known
            if (before := found.newest(identity)) is not None:
                await _give_up([before])
        else:
            # that was answered before: this one asks the same for another draw
            found.answers.pop(identity, None)
        call = asyncio.create_task(self._answered(found, asked, identity=identity))
        found.calls[call] = identity
        try:
            return await call
        finally:
            call.cancel()
            del found.calls[call]

    def _find(self, key: str) -> _Open:
        if (found := self._open.get(key)) is None:
            raise UnknownKeyError
        return found

    async def _answered(self, found: _Open, asked: ChatRequest | TokenRequest, *, identity: str) -> Answer:
        """The answer, which is kept also where its client leaves at this moment: it is in the record. Where
        another call asks the same meanwhile, a repeat is of that one."""
        answer = await self._sample(found, asked)
        if found.newest(identity) is asyncio.current_task():
            found.answers[identity] = answer
        while len(found.answers) > _REMEMBERED_ANSWERS:
            found.answers.popitem(last=False)
        return answer

    async def _sample(self, found: _Open, asked: ChatRequest | TokenRequest) -> Answer:
        begun = self._clock()
        turn = found.session.begin(asked)
        if turn.request is None:
            return found.session.cut(turn)
        try:
            rollout = await self._sampler.sample(found.number, turn.request)
        except BaseException as error:
            found.session.give_up(turn)
            if isinstance(error, RequestRefusedError):
                logger.warning("a call of an agent is refused: %s", error.said)
            elif isinstance(error, Exception) and not found.failed.done():
                found.failed.set_exception(error)
            raise
        return found.session.take(turn, rollout, seconds=self._clock() - begun)


def _end_late(sessions: Sequence[_Open]) -> list[asyncio.Task[Answer]]:
    """Let these get no other call; returns those that are being sampled. They are waited for however long
    engines take: what was begun in time is worth it."""
    for found in sessions:
        found.session.end_late()
    return [call for found in sessions for call in found.calls]


async def _give_up(calls: Sequence[asyncio.Future[Any]]) -> None:
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
