"""A sender to engines in one group: forms it, sends, and forms others when somebody breaks it."""

import asyncio
import base64
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial

from torch.distributed import TCPStore

from grpo_runtime.weight_sync.deadlines import not_done_within
from grpo_runtime.weight_sync.interface import (
    Failures,
    GroupBrokenError,
    NeedsAllWeightsError,
    OverLimitError,
    Peer,
    SenderSettings,
    TooSlowError,
    WeightSyncError,
)
from grpo_runtime.weight_sync.network.address import local_address_towards
from grpo_runtime.weight_sync.network.group import Join
from grpo_runtime.weight_sync.network.group_end import GroupEnd
from grpo_runtime.weight_sync.network.meeting import GroupInitInfo, MemberPlace, host_store
from grpo_runtime.weight_sync.sparse.sparse_weights import SparseWeights
from grpo_runtime.weight_sync.stream.host_copy import HostCopy
from grpo_runtime.weight_sync.stream.update_message import update_info
from grpo_runtime.weight_sync.together import act_together, blamed_for
from grpo_runtime.weight_sync.verbs import Verbs

log = logging.getLogger(__name__)

_CHECKED_BYTES_PER_SECOND = 2e8
"""At which an engine on a busy CPU puts changes into what it kept, and computes the tag of it."""


class GroupSender:
    """A WeightSender whose engines are in one group with the trainer.

    An engine that breaks the group is the one that failed: it refused, or gave no answer. The others form
    another group and get the same weights. When all say that somebody else broke it, each gets them in a
    group of its own, and who breaks that one has failed. So it is when a transfer to several goes on for
    longer than they may wait for one another: who alone takes as long, where others do not, is too slow for
    them. If none does, or all do, the next transfer to several may take longer.

    SparseWeights go as what changed where all engines of a group can use that. An engine that says that it
    cannot has not failed: it gets all weights, and so do the others of its group.
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
        self._delivered: SparseWeights | None = None
        """What the last `update` delivered, until `finish`."""
        self._was_over_limit = False
        """Whether a transfer to several engines of the last `update` took longer than they may wait for one
        another."""

    async def init(self, engines: Collection[str]) -> Failures:
        """See `WeightSender`. Where nobody is to blame that they do not meet, `update` tries them alone."""
        failures: dict[str, Exception] = {}
        await self._within_deadline(self._form(set(engines), failures), set(engines), failures)
        return failures

    async def start(self, engines: Collection[str]) -> Failures:
        """See `WeightSender`."""
        return await self._verbs.start(engines)

    async def update(self, weights: HostCopy | SparseWeights, *, engines: Collection[str]) -> Failures:
        """See `WeightSender`."""
        sent = weights if isinstance(weights, SparseWeights) else SparseWeights(weights)
        self._delivered = sent
        left = set(engines)
        failures: dict[str, Exception] = {}
        self._was_over_limit = False
        await self._within_deadline(self._deliver(sent, left, failures), left, failures)
        if self._was_over_limit:
            self._judge(set(engines), failures, are_all_tried=not left)
        sent.has_failed(failures)
        return failures

    async def finish(self, version: str, *, engines: Collection[str]) -> Failures:
        """See `WeightSender`."""
        delivered, self._delivered = self._delivered, None
        failures = await self._verbs.finish(
            {name: self._engines[name].channel.finish(version) for name in engines}
        )
        if delivered is not None:
            delivered.is_held_by(set(engines) - failures.keys())
            delivered.has_failed(failures)
        return failures

    async def abort(self, engines: Collection[str]) -> Failures:
        """See `WeightSender`."""
        self._delivered = None
        return await self._verbs.abort(engines)

    async def shutdown(self) -> None:
        """See `WeightSender`."""
        self._delivered = None
        self._leave_group()

    async def _deliver(self, weights: SparseWeights, left: set[str], failures: dict[str, Exception]) -> None:
        """Give the weights to all in `left`. Who has got them, or has failed, is taken out of it. Those whose
        turn does not come before this is cancelled have failed too, but stay in it."""
        wait = self._deadlines.timeout_seconds
        missed = "the trainer had no weights to send"
        groups = [frozenset(left)]
        try:
            await asyncio.to_thread(partial(weights.wait_until_ready, timeout_seconds=wait))
            missed = "its turn alone did not come"
            await self._serve(groups, weights, left, failures)
        except asyncio.CancelledError:
            error = WeightSyncError(f"{missed} within {wait:g} s")
            failures |= {name: error for group in groups for name in group}
            raise

    async def _serve(
        self,
        groups: list[frozenset[str]],
        weights: SparseWeights,
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
            lacking = {name for name, error in errors.items() if isinstance(error, NeedsAllWeightsError)}
            weights.needs_all(lacking)
            blamed = {
                name: error
                for name, error in blamed_for(errors, num_engines=len(engines)).items()
                if name not in lacking
            }
            failures |= blamed
            left.difference_update(engines - errors.keys(), blamed)
            again = frozenset(errors.keys() - blamed.keys())
            if (blamed or lacking) and again:
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
        has_quick = engines > failures.keys()
        if has_quick and (slow or not are_all_tried):
            return
        self._deadlines.note("shared transfer", self._deadlines.shared_seconds())
        failures |= {name: WeightSyncError(str(failures[name])) for name in slow}

    async def _deliver_to(
        self, engines: frozenset[str], weights: SparseWeights, *, limit_seconds: float
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
        changes = weights.changes_for(engines)
        if changes is not None:
            # the engines check all weights once the last change is there
            checking = weights.num_bytes / _CHECKED_BYTES_PER_SECOND
            stall, limit_seconds = stall + checking, limit_seconds + checking
        info = update_info(
            weights.copy,
            connection=group.key,
            stall_seconds=stall,
            changes=None if changes is None else changes.table,
        )
        buffers = weights.buffers(changes, stall_seconds=stall)
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
        elif changes is None:
            # a transfer of changes says nothing about the next one of all weights
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
        place = MemberPlace(key=group.key, rank=0, size=size, meeting_seconds=limit)
        joining = group.in_thread(partial(group.join, self._join, store, place, own_address=addresses[0]))
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
    ) -> None:
        """Do the work; what is left at the deadline has failed, and when all of it fails with what was
        raised."""
        limit = self._deadlines.timeout_seconds
        found: Exception
        try:
            async with asyncio.timeout(limit):
                await work
            return
        except TimeoutError:
            found = WeightSyncError(not_done_within(limit))
        except (WeightSyncError, OSError) as failure:
            found = failure
        self._leave_group()
        failures |= dict.fromkeys(left - failures.keys(), found)


def _with_the_others(errors: Failures, engines: Collection[str]) -> Failures:
    """Of a group that did not come about, also those that did their part."""
    broken = GroupBrokenError("another engine is not in it")
    return dict.fromkeys(engines, broken) | dict(errors)
