"""A sender to engines in one group: forms it, sends, and forms others when somebody breaks it."""

import asyncio
import time
from collections.abc import Awaitable, Collection, Mapping
from functools import partial

from grpo_runtime.weight_sync.interface import (
    Failures,
    GroupBrokenError,
    NeedsAllWeightsError,
    Peer,
    SenderSettings,
    WeightSyncError,
)
from grpo_runtime.weight_sync.network.address import local_address_towards
from grpo_runtime.weight_sync.network.group import Join
from grpo_runtime.weight_sync.network.group_end import GroupEnd
from grpo_runtime.weight_sync.network.meeting import GroupInitInfo, Place, host_store
from grpo_runtime.weight_sync.sparse.sparse_weights import SparseWeights
from grpo_runtime.weight_sync.stream.host_copy import HostCopy
from grpo_runtime.weight_sync.stream.update_message import update_info
from grpo_runtime.weight_sync.together import act_together, blamed_for
from grpo_runtime.weight_sync.verbs import Verbs

_CHECKED_BYTES_PER_SECOND = 2e8
"""At which an engine on a busy CPU puts changes into what it kept, and computes the tag of it."""


class GroupSender:
    """A WeightSender whose engines are in one group with the trainer.

    An engine that breaks the group is the one that failed: it refused, or gave no answer. The others form
    another group and get the same weights. When all say that somebody else broke it, each gets them in a
    group of its own, and who breaks that one has failed.

    SparseWeights go as what changed where all engines of a group can use that. An engine that says that it
    cannot has not failed: it gets all weights, and so do the others of its group.
    """

    def __init__(self, engines: Mapping[str, Peer], settings: SenderSettings, *, join: Join) -> None:
        self._engines = engines
        self._deadlines = settings.deadlines
        self._verbs = Verbs({name: peer.channel for name, peer in engines.items()}, settings.deadlines)
        self._join = join
        self._group: GroupEnd | None = None
        self._delivered: SparseWeights | None = None
        """What the last `update` delivered, until `finish`."""

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
        await self._within_deadline(self._deliver(sent, left, failures), left, failures)
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
        """Give the weights to all in `left`. Who has got them, or has failed, is taken out of it."""
        limit = self._deadlines.timeout_seconds
        await asyncio.to_thread(partial(weights.wait_until_ready, timeout_seconds=limit))
        groups = [frozenset(left)]
        while groups:
            engines = groups.pop()
            errors = await self._deliver_to(engines, weights)
            lacking = {name for name, error in errors.items() if NeedsAllWeightsError.is_said_by(error)}
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
            else:
                groups += [frozenset({name}) for name in sorted(again)]

    async def _deliver_to(self, engines: frozenset[str], weights: SparseWeights) -> Failures:
        """Give the weights to these engines in one group. Returns the errors of those that lack them."""
        if self._group is None or self._group.engines != engines:
            # an update that was open has ended with the group before
            errors = await self._meet(engines) or await self._verbs.start(engines)
            if errors:
                self._leave_group()
                return _with_the_others(errors, engines)
        group, stall, start = self._group, self._deadlines.stall_seconds(), time.monotonic()
        if group is None:
            raise WeightSyncError("the trainer is in no group")
        changes = weights.changes_for(engines)
        if changes is not None:
            # the engines check all weights once the last change is there
            stall += weights.num_bytes / _CHECKED_BYTES_PER_SECOND
        info = update_info(
            weights.copy,
            connection=group.key,
            stall_seconds=stall,
            changes=None if changes is None else changes.table,
        )
        buffers = weights.buffers(changes, stall_seconds=stall)
        errors = await act_together(
            {name: self._engines[name].channel.update(info) for name in engines},
            group.in_thread(partial(group.send, buffers, stall_seconds=stall)),
            stall_seconds=stall,
        )
        if errors:
            self._leave_group()
        elif changes is None:
            # a transfer of changes says nothing about the next one of all weights
            self._deadlines.note("transfer", time.monotonic() - start)
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
        store = await group.in_thread(partial(host_store, addresses[0], timeout_seconds=limit))
        size = 1 + sum(peer.num_workers for peer in engines.values())
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
            )
            calls[name] = peer.channel.init(info.model_dump())
            first_rank += peer.num_workers
        place = Place(key=group.key, rank=0, size=size, meeting_seconds=limit)
        joining = group.in_thread(partial(group.join, self._join, store, place, own_address=addresses[0]))
        errors = await act_together(calls, joining, stall_seconds=limit)
        if not errors:
            self._deadlines.note("meeting", time.monotonic() - start)
        return errors

    def _leave_group(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.leave()

    async def _within_deadline(
        self, work: Awaitable[None], left: set[str], failures: dict[str, Exception]
    ) -> None:
        """Do the work; what is left at the deadline, or when all of it fails, has failed."""
        limit = self._deadlines.timeout_seconds
        error: Exception
        try:
            async with asyncio.timeout(limit):
                await work
            return
        except TimeoutError:
            error = WeightSyncError(f"not done within {limit:g} s")
        except (WeightSyncError, OSError) as found:
            error = found
        self._leave_group()
        failures |= dict.fromkeys(left - failures.keys(), error)


def _with_the_others(errors: Failures, engines: Collection[str]) -> Failures:
    """Of a group that did not come about, also those that did their part."""
    broken = GroupBrokenError("another engine is not in it")
    return dict.fromkeys(engines, broken) | dict(errors)
