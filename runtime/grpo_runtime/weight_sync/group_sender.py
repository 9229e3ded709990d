"""The trainer's end of a group: forms it, sends, and forms it again without whoever broke it."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from torch.distributed import Store

from grpo_runtime.weight_sync.address import local_address_towards
from grpo_runtime.weight_sync.group import Communicator, Join, broadcast_all
from grpo_runtime.weight_sync.host_copy import HostCopy
from grpo_runtime.weight_sync.interface import (
    Failures,
    GroupBrokenError,
    Peer,
    SenderSettings,
    WeightSyncError,
)
from grpo_runtime.weight_sync.meeting import GroupInitInfo, Place, host_store
from grpo_runtime.weight_sync.pairwise import Verbs
from grpo_runtime.weight_sync.staging import update_info

SHORTEST_STALL_SECONDS = 10.0
"""How long a buffer, or a member that is awaited, may take at least."""
LONGEST_SHARE = 0.25
"""Part of the deadline after which a group is given up: there is time left for another one."""
ANSWER_SECONDS = 2.0
"""What the answer of an engine may take longer than the member that it waits for."""

_T = TypeVar("_T")


class GroupSender:
    """A WeightSender whose engines are in one group with the trainer.

    An engine that breaks the group is named as the one that failed: it refused, or gave no answer. The others
    form another group and get the same weights. When all say that somebody else broke it, all have failed.
    """

    def __init__(self, engines: Mapping[str, Peer], settings: SenderSettings, *, join: Join) -> None:
        self._engines = engines
        self._timeout_seconds = settings.timeout_seconds
        self._join = join
        self._verbs = Verbs({name: peer.channel for name, peer in engines.items()}, settings.timeout_seconds)
        self._group: _Group | None = None
        self._transfer_seconds = 0.0

    async def init(self, engines: Collection[str]) -> Failures:
        """See `WeightSender`."""
        left = set(engines)
        failures: dict[str, Exception] = {}
        await self._within_deadline(self._form(left, failures), left, failures)
        return failures

    async def start(self, engines: Collection[str]) -> Failures:
        """See `WeightSender`."""
        return await self._verbs.start(engines)

    async def update(self, weights: HostCopy, *, engines: Collection[str]) -> Failures:
        """See `WeightSender`."""
        left = set(engines)
        failures: dict[str, Exception] = {}
        await self._within_deadline(self._update(weights, left, failures), left, failures)
        return failures

    async def finish(self, version: str, *, engines: Collection[str]) -> Failures:
        """See `WeightSender`."""
        return await self._verbs.finish(
            {name: self._engines[name].channel.finish(version) for name in engines}
        )

    async def abort(self, engines: Collection[str]) -> Failures:
        """See `WeightSender`."""
        return await self._verbs.abort(engines)

    async def shutdown(self) -> None:
        """See `WeightSender`."""
        self._leave_group()

    async def _update(self, weights: HostCopy, left: set[str], failures: dict[str, Exception]) -> None:
        """Deliver to the engines in `left`, moving those that fail to `failures` and taking out the others
        once they have everything."""
        while left:
            if self._group is None or self._group.engines != left:
                await self._form(left, failures)
                # the update that was open has ended with the group
                _move(await self._verbs.start(left), left, failures)
                continue
            errors = await self._transfer(self._group, weights)
            if errors:
                self._leave_group()
            left.intersection_update(errors)  # the others have everything
            blamed = _blamed(errors)
            _move(blamed or errors, left, failures)

    async def _transfer(self, group: "_Group", weights: HostCopy) -> Failures:
        start, stall = time.monotonic(), self._stall_seconds()
        info = update_info(weights, connection=group.key, stall_seconds=stall)
        errors = await _together(
            {name: self._engines[name].channel.update(info) for name in group.engines},
            group.in_thread(lambda: group.send(weights, timeout_seconds=stall)),
            answer_seconds=stall + ANSWER_SECONDS,
        )
        if not errors:
            self._transfer_seconds = time.monotonic() - start
        return errors

    async def _form(self, left: set[str], failures: dict[str, Exception]) -> None:
        """Form a group of the engines in `left`, moving those that do not come to `failures`."""
        self._leave_group()
        while left and self._group is None:
            group = _Group(frozenset(left))
            errors = await self._meet(group)
            if not errors:
                self._group = group
                return
            group.leave()
            _move(_blamed(errors) or errors, left, failures)

    async def _meet(self, group: "_Group") -> Failures:
        limit = min(SHORTEST_STALL_SECONDS, self._timeout_seconds * LONGEST_SHARE)
        engines = {name: self._engines[name] for name in sorted(group.engines)}
        addresses = {name: local_address_towards(peer.host) for name, peer in engines.items()}
        own_address = next(iter(addresses.values()))
        store = await group.in_thread(lambda: host_store(own_address, timeout_seconds=limit))
        size = 1 + sum(peer.num_workers for peer in engines.values())
        place = Place(key=group.key, rank=0, size=size, meeting_seconds=limit)
        calls: dict[str, Awaitable[None]] = {}
        first_rank = 1
        for name, peer in engines.items():
            info = GroupInitInfo(
                address=addresses[name],
                port=store.port,
                key=place.key,
                first_rank=first_rank,
                size=size,
                meeting_seconds=limit,
            )
            calls[name] = peer.channel.init(info.model_dump())
            first_rank += peer.num_workers
        return await _together(
            calls,
            group.in_thread(lambda: group.join(self._join, store, place, own_address=own_address)),
            answer_seconds=limit + ANSWER_SECONDS,
        )

    def _stall_seconds(self) -> float:
        wanted = max(SHORTEST_STALL_SECONDS, 5.0 * self._transfer_seconds)
        return min(wanted, self._timeout_seconds * LONGEST_SHARE)

    def _leave_group(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.leave()

    async def _within_deadline(
        self, work: Awaitable[None], left: set[str], failures: dict[str, Exception]
    ) -> None:
        """Do the work; what is left at the deadline, or when all of it fails, has failed."""
        error: Exception
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await work
            return
        except TimeoutError:
            error = WeightSyncError(f"not done within {self._timeout_seconds:g} s")
        except (WeightSyncError, OSError) as found:
            error = found
        self._leave_group()
        failures |= dict.fromkeys(left, error)


class _Group:
    """The trainer's place in one group, and the thread that blocks in it."""

    def __init__(self, engines: frozenset[str]) -> None:
        self.engines = engines
        self.key = secrets.token_urlsafe(24)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weight-sender")
        self._communicator: Communicator | None = None

    def in_thread(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        """What `work` gives, in the thread of this group."""
        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    def join(self, join: Join, store: Store, place: Place, *, own_address: str) -> None:
        """Meet the engines. Blocks."""
        self._communicator = join(store, place, own_address=own_address)

    def send(self, weights: HostCopy, *, timeout_seconds: float) -> None:
        """Give all buffers to the engines. Blocks."""
        if self._communicator is None:
            raise WeightSyncError("the trainer is in no group: call init first")
        for _ in broadcast_all(self._communicator, weights.buffers(), timeout_seconds=timeout_seconds):
            pass

    def leave(self) -> None:
        """Let go of the group. A thread that still works in it ends at its own deadline."""
        communicator, self._communicator = self._communicator, None
        if communicator is not None:
            communicator.close()
        self._thread.shutdown(wait=False, cancel_futures=True)


async def _together(
    calls: Mapping[str, Awaitable[None]], own: asyncio.Future[Any], *, answer_seconds: float
) -> dict[str, Exception]:
    """The errors of the engines that are called, while the trainer does its part.

    Once one of them has failed, or the trainer is done, the others have `answer_seconds` left. Raises what
    the trainer's part raised, unless it broke because of an engine.
    """
    answers = {name: asyncio.ensure_future(call) for name, call in calls.items()}
    own.add_done_callback(_read)
    try:
        waiting: set[asyncio.Future[Any]] = {own, *answers.values()}
        while waiting and not own.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if any(one.exception() for one in done):
                break
        await asyncio.wait(answers.values(), timeout=answer_seconds)
    finally:
        for answer in answers.values():
            answer.cancel()
    if own.done() and not isinstance(own.exception(), GroupBrokenError):
        own.result()
    errors = {name: _error_of(answer, seconds=answer_seconds) for name, answer in answers.items()}
    return {name: error for name, error in errors.items() if error is not None}


def _error_of(answer: asyncio.Future[None], *, seconds: float) -> Exception | None:
    if not answer.done() or answer.cancelled():
        return WeightSyncError(f"no answer within {seconds:g} s")
    error = answer.exception()
    if error is not None and not isinstance(error, Exception):
        raise error
    return error


def _blamed(errors: Failures) -> Failures:
    """Those that broke the group themselves."""
    return {name: error for name, error in errors.items() if not GroupBrokenError.is_said_by(error)}


def _move(failed: Failures, left: set[str], failures: dict[str, Exception]) -> None:
    left.difference_update(failed)
    failures |= failed


def _read(future: asyncio.Future[Any]) -> None:
    """Read the outcome of a thread that is no longer waited for: asyncio reports errors that are never
    read."""
    if not future.cancelled():
        future.exception()
