"""The guard's own routes to the engine: it samples, and computes the logprobs of a probe."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from starlette.types import Receive, Send

from grpo_runtime.engines.serve.http import BadRequestError, read_body, send_error, send_frames
from grpo_runtime.rollouts.frames import Frame, read_frames
from grpo_runtime.rollouts.interface import EngineError, Rollout
from grpo_runtime.rollouts.wire import EngineCall, completion_frame, logprobs_frame

log = logging.getLogger(__name__)

T = TypeVar("T")
_MAX_CALL_BYTES = 16 << 20
"""A prompt has 4 bytes a token."""


class ServedEngine(Protocol):
    """What the guard asks of the engine that it stands before, which is `state.engine_client` of the
    application."""

    @property
    def errored(self) -> bool:
        """Whether it is dead. Answered also while it loads weights."""
        ...

    async def get_weight_version(self) -> str:
        """The version that the last update of its weights was finished as."""
        ...

    async def sample(self, call: EngineCall, *, name: str) -> list[Rollout]:
        """The completions of a call, in the order of their seeds; `name` is that of the engine. Raises
        BadRequestError for a call that the engine refuses."""
        ...

    async def logprobs(self, call: EngineCall) -> list[float]:
        """Logprobs (nats, temperature 1) of all tokens of a call after the first. Raises as `sample` does."""
        ...

    async def hand_over(self) -> None:
        """Let `sample` return at once, wherever it runs, with what there is of each completion."""
        ...


async def answer_sample(engine: ServedEngine, receive: Receive, send: Send, *, name: str) -> None:
    """Answer a call for completions."""

    async def sample(call: EngineCall) -> list[Frame]:
        return [completion_frame(rollout) for rollout in await engine.sample(call, name=name)]

    await _answer(sample, receive, send)


async def answer_logprobs(engine: ServedEngine, receive: Receive, send: Send) -> None:
    """Answer a call for logprobs."""

    async def logprobs(call: EngineCall) -> list[Frame]:
        return [logprobs_frame(await engine.logprobs(call))]

    await _answer(logprobs, receive, send)


async def _answer(
    compute: Callable[[EngineCall], Coroutine[Any, Any, list[Frame]]], receive: Receive, send: Send
) -> None:
    body = await read_body(receive, max_bytes=_MAX_CALL_BYTES)
    try:
        [frame] = read_frames(body)
        call = EngineCall.of(frame)
    except (KeyError, TypeError, ValueError) as error:
        raise BadRequestError(f"the body is no call of an engine: {error}") from error
    try:
        frames = await _unless_left(compute(call), receive)
    except (BadRequestError, asyncio.CancelledError):
        raise
    except EngineError as error:
        log.warning("the engine gave no answer: %s", error)
        await send_error(send, 500, str(error))
        return
    except Exception as error:
        # those of vLLM, of an engine that is dead among others
        log.exception("the engine gave no answer")
        await send_error(send, 500, f"{type(error).__name__}: {error}")
        return
    if frames is not None:
        await send_frames(send, frames)


async def _unless_left(work: Coroutine[Any, Any, T], receive: Receive) -> T | None:
    """What the work gives; None when the caller has closed the connection before, which ends the work."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
