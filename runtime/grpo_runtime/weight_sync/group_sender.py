"""A sender to engines in one group: forms it, sends, and forms others when somebody breaks it."""

import asyncio
import base64
import logging
import math
import random
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from torch.distributed import Store, TCPStore

from grpo_runtime.weight_sync.deadlines import not_done_within
from grpo_runtime.weight_sync.group import (
    Communicator,
    GroupInitInfo,
    GroupMember,
    Join,
    broadcast_all,
    host_store,
    local_address_towards,
)
from grpo_runtime.weight_sync.interface import (
    Failures,
    GroupBrokenError,
    Info,
    NeedsAllWeightsError,
    OverLimitError,
    Peer,
    SenderSettings,
    TooSlowError,
    WeightSyncError,
)
from grpo_runtime.weight_sync.sender import Verbs, act_together, blamed_for, read_outcome

log = logging.getLogger(__name__)
_T = TypeVar("_T")


class SentWeights(Protocol):
    """What a group is sent: a `HostCopy`, or what changed since one."""

    @property
    def checking_seconds(self) -> float:
        """How long an engine may need when it has the last byte; 0 where it checks them while they arrive."""
        ...

    def wait_for_first_buffer(self, *, timeout_seconds: float) -> None:
        """Wait until there is something to send. Raises WeightSyncError when that takes longer."""
        ...

    def update_info(self, *, connection: str, stall_seconds: float) -> Info:
        """The `update` that announces it, for the control channel."""
        ...

    def buffers(self, *, stall_seconds: float) -> Iterator[torch.Tensor]:
        """The bytes, in order. May be asked for again and again. Raises WeightSyncError when they do not come
        for so long."""
        ...


class GroupEnd:
    """A group of these engines, which no other has the key of."""

    def __init__(self, engines: frozenset[str]) -> None:
        self.engines = engines
        self.key = secrets.token_urlsafe(24)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weight-sender")
        self._invitation: Future[bytes] = Future()
        self._communicator: Communicator | None = None
        self._is_left = False
        self._leaving = threading.Lock()

    @property
    def is_joined(self) -> bool:
        """Whether the trainer has met the engines."""
        return self._communicator is not None

    def in_thread(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        """Run `work` in the thread of this group."""
        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def invitation(self, joining: asyncio.Future[None]) -> bytes:
        """NCCL's id of the group, if it has one, once the engines may come. `joining` is the trainer's
        `join`: raises what that fails with before."""
        joining.add_done_callback(read_outcome)
        invited = asyncio.wrap_future(self._invitation)
        either: set[asyncio.Future[Any]] = {invited, joining}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if invited.done():
                return invited.result()
            await joining
        finally:
            # the trainer does not wait for engines that are not called
            invited.cancel()
        raise WeightSyncError("the trainer is in the group before the engines may come")

    def join(self, join: Join, store: Store, member: GroupMember, *, own_address: str) -> None:
        """Meet the engines. Blocks."""
        communicator = join(store, member, own_address=own_address, invite=self._invitation.set_result)
        with self._leaving:
            if not self._is_left:
                self._communicator = communicator
                return
        communicator.close()
        raise GroupBrokenError("it was aborted before all members were there")

    def send(
        self, buffers: Iterable[torch.Tensor], *, stall_seconds: float, limit_seconds: float = math.inf
    ) -> None:
        """Give all buffers to the engines. Blocks, and aborts a transfer without progress for
        `stall_seconds`. Raises OverLimitError between two buffers once it has taken longer than
        `limit_seconds`."""
        if self._communicator is None:
            raise GroupBrokenError("the trainer is in no group")
        ends_at = time.monotonic() + limit_seconds
        for _ in broadcast_all(self._communicator, buffers, timeout_seconds=stall_seconds):
            if time.monotonic() > ends_at:
                raise OverLimitError(f"not done within {limit_seconds:g} s")

    def leave(self) -> None:
        """Close the group. A thread that still works in it ends once there was no progress for its stall
        time."""
        with self._leaving:
            self._is_left = True
            communicator, self._communicator = self._communicator, None
        if communicator is not None:
            communicator.close()
        self._thread.shutdown(wait=False, cancel_futures=True)


class GroupSender:
    """A WeightSender whose engines are in one group with the trainer.

    An engine that breaks the group is the one that failed: it refused, or gave no answer. The others form
    another group and get the same weights. When all say that somebody else broke it, each gets them in a
    group of its own, and who breaks that one has failed. So it is when a transfer to several goes on for
    longer than they may wait for one another: who alone takes as long, where others do not, is too slow for
    them. If none does, or all do, the next transfer to several may take longer.
    """

    def __init__(
        self,
        engines: Mapping[str, Peer],
        settings: SenderSettings,
        *,
        join: Join,
        host: Callable[..., TCPStore] = host_store,
    ) -> None:
        """`host` makes the store at which a group meets, as `host_store` does."""
        self._engines = engines
        self._deadlines = settings.deadlines
        self._verbs = Verbs({name: peer.channel for name, peer in engines.items()}, settings.deadlines)
        self._join = join
        self._host = host
        self._group: GroupEnd | None = None
        self._was_over_limit = False
        """Whether a transfer to several engines of the last `update` took longer than they may wait for one
        another."""

    async def init(self, engines: Collection[str]) -> Failures:
        """Connect to the receivers. Where nobody is to blame that they do not meet, `update` tries them
        alone."""
        failures: dict[str, Exception] = {}
        await self._within_deadline(self._form(set(engines), failures), set(engines), failures)
        return failures

    async def start(self, engines: Collection[str]) -> Failures:
        """Open an update, ending one that an earlier trainer left open."""
        return await self._verbs.start(engines)

    async def update(
        self, weights: SentWeights, *, engines: Collection[str], ends_at: float | None = None
    ) -> Failures:
        """Deliver all weights and wait until the receivers have checked them."""
        left = set(engines)
        failures: dict[str, Exception] = {}
        self._was_over_limit = False
        work = self._deliver(weights, left, failures)
        await self._within_deadline(work, left, failures, ends_at=ends_at)
        if self._was_over_limit:
            self._judge(set(engines), failures, are_all_tried=not left)
        return failures

    async def finish(self, version: str, *, engines: Collection[str]) -> Failures:
        """Apply what was delivered, under this version."""
        return await self._verbs.finish(
            {name: self._engines[name].channel.finish(version) for name in engines}
        )

    async def abort(self, engines: Collection[str]) -> Failures:
        """End an update instead of finishing it; the old weights stay."""
        return await self._verbs.abort(engines)

    async def shutdown(self) -> None:
        """Let go of every connection and thread; the engines are not called."""
        self._leave_group()

    async def _deliver(self, weights: SentWeights, left: set[str], failures: dict[str, Exception]) -> None:
        """Give the weights to all in `left`. Who has got them, or has failed, is taken out of it. Those whose
        turn does not come before this is cancelled have failed too, but stay in it."""
        wait = self._deadlines.timeout_seconds
        missed = "the trainer had no weights to send"
        groups = [frozenset(left)]
        try:
            await asyncio.to_thread(partial(weights.wait_for_first_buffer, timeout_seconds=wait))
            missed = "its turn alone did not come"
            await self._serve(groups, weights, left, failures)
        except asyncio.CancelledError:
            error = WeightSyncError(f"{missed} within {wait:g} s")
            failures |= {name: error for group in groups for name in group}
            raise

    async def _serve(
        self,
        groups: list[frozenset[str]],
        weights: SentWeights,
        left: set[str],
        failures: dict[str, Exception],
    ) -> None:
        """Give the weights to these groups, one after the other, and to those that they break into. See
        `_deliver`."""
        shared = self._deadlines.shared_seconds()
        while groups:
            engines = groups.pop()
            # an engine that is alone keeps nobody waiting, unless this is to show whether it is slower
            limit = shared if len(engines) > 1 or self._was_over_limit else math.inf
            errors = await self._deliver_to(engines, weights, limit_seconds=limit)
            blamed = blamed_for(errors, num_engines=len(engines))
            failures |= blamed
            left.difference_update(engines - errors.keys(), blamed)
            again = frozenset(errors.keys() - blamed.keys())
            if blamed and again:
                groups.append(again)
            elif again:
                log.warning(
                    "a transfer to %d engines failed%s, and no engine is to blame: each is served alone (%s)",
                    len(engines),
                    f" after {shared:g} s" if self._was_over_limit else "",
                    "; ".join(f"{name}: {errors[name]}" for name in sorted(again)),
                )
                # in another order each time: the deadline may end before all have had their turn
                groups += [frozenset({name}) for name in random.sample(sorted(again), len(again))]

    def _judge(self, engines: set[str], failures: dict[str, Exception], *, are_all_tried: bool) -> None:
        """After a transfer to several engines that went on for too long: are some slower than the others, or
        do all of them together take as long by now? Where not all had their turn, that may not be known."""
        slow = {name for name, error in failures.items() if isinstance(error, TooSlowError)}
        # one that was sent what changed, and must be given all weights, has kept nobody waiting
        not_quick = {n for n, error in failures.items() if not isinstance(error, NeedsAllWeightsError)}
        has_quick = engines > not_quick
        if has_quick and (slow or not are_all_tried):
            return
        self._deadlines.note("shared transfer", self._deadlines.shared_seconds())
        failures |= {name: WeightSyncError(str(failures[name])) for name in slow}

    async def _deliver_to(
        self, engines: frozenset[str], weights: SentWeights, *, limit_seconds: float
    ) -> Failures:
        """Give the weights to these engines in one group. Returns the errors of those that lack them."""
        if self._group is None or self._group.engines != engines:
            # an update that was open has ended with the group before
            errors = await self._meet(engines) or await self._verbs.start(engines)
            if errors:
                self._leave_group()
                return _with_the_others(errors, engines)
        group, start = self._group, time.monotonic()
        stall = min(self._deadlines.stall_seconds(), limit_seconds)
        if group is None:
            raise WeightSyncError("the trainer is in no group")
        checking = weights.checking_seconds
        stall, limit_seconds = stall + checking, limit_seconds + checking
        info = weights.update_info(connection=group.key, stall_seconds=stall)
        buffers = weights.buffers(stall_seconds=stall)
        sending = group.in_thread(
            partial(group.send, buffers, stall_seconds=stall, limit_seconds=limit_seconds)
        )
        errors = await act_together(
            {name: self._engines[name].channel.update(info) for name in engines}, sending, stall_seconds=stall
        )
        if errors:
            self._leave_group()
            if sending.done() and isinstance(sending.exception(), OverLimitError):
                if len(engines) == 1:
                    return {name: TooSlowError(not_done_within(limit_seconds)) for name in engines}
                self._was_over_limit = True
        elif not checking:
            # a transfer of what changed says nothing about the next one of all weights
            took = time.monotonic() - start
            self._deadlines.note("transfer", took)
            if len(engines) > 1:
                self._deadlines.note("shared transfer", took)
        return errors

    async def _form(self, engines: set[str], failures: dict[str, Exception]) -> None:
        """Form a group of those of the engines that come to it."""
        while engines:
            errors = await self._meet(frozenset(engines))
            blamed = blamed_for(errors, num_engines=len(engines))
            failures |= blamed
            engines.difference_update(blamed)
            if not blamed:
                return

    async def _meet(self, engines: frozenset[str]) -> Failures:
        """Form a group of all these engines. Returns the errors of all when it does not come about."""
        self._leave_group()
        group = GroupEnd(engines)
        try:
            errors = await self._call_to_meeting(group)
            if not errors and not group.is_joined:
                raise WeightSyncError("all engines have met, but without the trainer")
        except BaseException:
            group.leave()
            raise
        if errors:
            group.leave()
            return _with_the_others(errors, engines)
        self._group = group
        return {}

    async def _call_to_meeting(self, group: GroupEnd) -> Failures:
        limit, start = self._deadlines.meeting_seconds(), time.monotonic()
        engines = {name: self._engines[name] for name in sorted(group.engines)}
        hosts = [peer.host for peer in engines.values()]
        addresses = await group.in_thread(lambda: [local_address_towards(host) for host in hosts])
        store = await group.in_thread(partial(self._host, addresses[0], timeout_seconds=limit))
        size = 1 + sum(peer.num_workers for peer in engines.values())
        member = GroupMember(key=group.key, rank=0, size=size, meeting_seconds=limit)
        joining = group.in_thread(partial(group.join, self._join, store, member, own_address=addresses[0]))
        nccl_id = await group.invitation(joining)
        calls: dict[str, Awaitable[None]] = {}
        first_rank = 1
        for (name, peer), address in zip(engines.items(), addresses, strict=True):
            info = GroupInitInfo(
                address=address,
                port=store.port,
                key=group.key,
                first_rank=first_rank,
                size=size,
                meeting_seconds=limit,
                nccl_unique_id_b64=base64.b64encode(nccl_id).decode() or None,
            )
            calls[name] = peer.channel.init(info.model_dump(exclude_none=True))
            first_rank += peer.num_workers
        errors = await act_together(calls, joining, stall_seconds=limit)
        if not errors:
            self._deadlines.note("meeting", time.monotonic() - start)
        return errors

    def _leave_group(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.leave()

    async def _within_deadline(
        self,
        work: Awaitable[None],
        left: set[str],
        failures: dict[str, Exception],
        *,
        ends_at: float | None = None,
    ) -> None:
        """Do the work; what is left at the deadline has failed, and when all of it fails with what was
        raised."""
        limit = self._deadlines.timeout_seconds
        found: Exception
        try:
            async with asyncio.timeout(limit if ends_at is None else ends_at - time.monotonic()):
                await work
            return
        except TimeoutError:
            found = WeightSyncError(not_done_within(limit))
        except (WeightSyncError, OSError) as failure:
            found = failure
        self._leave_group()
        failures |= dict.fromkeys(left - failures.keys(), found)


def _with_the_others(errors: Failures, engines: Collection[str]) -> Failures:
    """The failures of a group that did not form, with those of members that did their part."""
    broken = GroupBrokenError("another engine is not in it")
    return dict.fromkeys(engines, broken) | dict(errors)
