"""The trainer's end of a group that is left while the engines are met."""

import asyncio
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from grpo_runtime.weight_sync.group_sender import GroupEnd
from grpo_runtime.weight_sync.interface import GroupBrokenError, WeightSyncError

NUM_LINES = 12
"""More than `GroupEnd.join` has after the engines were met."""


class OpenCommunicator:
    """What the group is left with; counts how often it was closed."""

    num_closed = 0

    def close(self) -> None:
        self.num_closed += 1


def join_and_leave(end: GroupEnd, communicator: OpenCommunicator, *, line: int) -> None:
    """Meet the engines, and leave in another thread just before this line that follows is executed. Goes on
    when the other thread has left, or waits for this one."""
    leaving = threading.Thread(target=end.leave)
    num_lines = 0
    has_met = False

    def meet(*_: object, **__: object) -> Any:
        nonlocal has_met
        has_met = True
        return communicator

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal num_lines
        if frame.f_code is not GroupEnd.join.__code__:
            return None
        if event == "line" and has_met:
            if num_lines == line:
                leaving.start()
                leaving.join(0.2)
            num_lines += 1
        return trace

    def join() -> None:
        sys.settrace(trace)
        try:
            end.join(meet, None, None, own_address="127.0.0.1")  # type: ignore[arg-type]
        except GroupBrokenError:
            return  # it was left before
        finally:
            sys.settrace(None)

    joining = threading.Thread(target=join)
    joining.start()
    joining.join(10)
    if leaving.ident is None:
        leaving.start()
    leaving.join(10)
    assert not joining.is_alive() and not leaving.is_alive()


@pytest.mark.parametrize("line", range(NUM_LINES))
def test_a_group_that_is_left_at_any_moment_is_closed_once_and_not_joined(line: int) -> None:
    end, communicator = GroupEnd(frozenset({"engine"})), OpenCommunicator()
    join_and_leave(end, communicator, line=line)
    assert communicator.num_closed == 1
    assert not end.is_joined


def joining(end: GroupEnd, join: Callable[..., Any]) -> asyncio.Future[None]:
    """The trainer's part, in the thread of the group."""
    return end.in_thread(partial(end.join, join, None, None, own_address="127.0.0.1"))  # type: ignore[arg-type]


async def test_the_trainer_does_not_wait_for_engines_that_nobody_calls() -> None:
    """The sync was given up while its library began the group."""
    end, is_given_up = GroupEnd(frozenset({"engine"})), threading.Event()

    def join(*_: object, invite: Callable[[bytes], None], **__: object) -> Any:
        assert is_given_up.wait(10)
        invite(b"id")
        return OpenCommunicator()

    part = joining(end, join)
    inviting = asyncio.ensure_future(end.invitation(part))
    await asyncio.sleep(0)
    inviting.cancel()
    await asyncio.gather(inviting, return_exceptions=True)
    is_given_up.set()
    with pytest.raises(asyncio.InvalidStateError):
        await part
    assert not end.is_joined


async def test_a_group_without_an_invitation_is_an_error_and_not_waited_for() -> None:
    end = GroupEnd(frozenset({"engine"}))
    part = joining(end, lambda *_, **__: OpenCommunicator())
    with pytest.raises(WeightSyncError, match="before the engines may come"):
        await end.invitation(part)
