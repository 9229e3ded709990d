"""One act of a group: every engine is called while the trainer does its part, and who broke it is found."""

import asyncio
import time
from collections.abc import Awaitable, Mapping
from typing import Any

from grpo_runtime.weight_sync.deadlines import ANSWER_SECONDS
from grpo_runtime.weight_sync.interface import (
    Failures,
    GroupBrokenError,
    OverLimitError,
    TooSlowError,
    WeightSyncError,
)


async def act_together(
    calls: Mapping[str, Awaitable[None]], own_part: asyncio.Future[Any], *, stall_seconds: float
) -> dict[str, Exception]:
    """The errors of the engines.

    The trainer's part ends by itself, at the latest `stall_seconds` after it no longer goes on. All others
    have stood still as long by then, so that they answer in a moment; where it ends sooner, as with a lost
    connection, or an engine refuses, they have the rest of that time too. Raises what the trainer's part
    raised, unless an engine broke it. When that is an OverLimitError, the others have just had something,
    and stand still from then on; who gives no answer then is a TooSlowError. An engine that is alone is not
    waited for.
    """
    start = time.monotonic()
    answers = {name: asyncio.ensure_future(call) for name, call in calls.items()}
    own_part.add_done_callback(read_outcome)
    try:
        waiting: set[asyncio.Future[Any]] = {own_part, *answers.values()}
        while waiting and not own_part.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if any(one.exception() for one in done):
                break
        if _failed_by_itself(own_part):
            own_part.result()
        is_over_limit = own_part.done() and isinstance(own_part.exception(), OverLimitError)
        has_stalled = own_part.done() and own_part.exception() is not None
        # a lost connection is found at once, and those behind it stand still for as long as they may
        stalled_for = time.monotonic() - start if has_stalled and not is_over_limit else 0.0
        patience = max(0.0, stall_seconds - stalled_for) + ANSWER_SECONDS
        if not is_over_limit or len(calls) > 1:
            await asyncio.wait(answers.values(), timeout=patience)
    finally:
        for answer in answers.values():
            answer.cancel()
        outcomes = await asyncio.gather(*answers.values(), return_exceptions=True)
    if _failed_by_itself(own_part):
        own_part.result()
    errors: dict[str, Exception] = {}
    for name, outcome in zip(answers, outcomes, strict=True):
        if isinstance(outcome, asyncio.CancelledError):
            kind = TooSlowError if is_over_limit else WeightSyncError
            errors[name] = kind(f"no answer within {stall_seconds:g} s")
        elif isinstance(outcome, Exception):
            errors[name] = outcome
        elif isinstance(outcome, BaseException):
            raise outcome
    return errors


def blamed_for(errors: Failures, *, num_engines: int) -> Failures:
    """Those of the engines that broke the group themselves: they refused, gave no answer, or were alone in it
    with the trainer."""
    if num_engines == 1:
        return errors
    return {name: error for name, error in errors.items() if not isinstance(error, GroupBrokenError)}


def read_outcome(future: asyncio.Future[Any]) -> None:
    """Read what became of work that is no longer waited for: asyncio reports errors that are never read."""
    if not future.cancelled():
        future.exception()


def _failed_by_itself(own_part: asyncio.Future[Any]) -> bool:
    """Whether the trainer's part has failed, and not because of an engine."""
    error = own_part.exception() if own_part.done() else None
    return error is not None and not isinstance(error, GroupBrokenError)
