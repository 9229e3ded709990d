"""The members of a fleet, kept up to date by calling every address again and again. The addresses are those
that the names of the hosts resolve to."""

import asyncio
import contextlib
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import aiohttp

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.fleet import liveness, membership
from grpo_runtime.engines.fleet.engine_client import (
    Address,
    EngineClient,
    EngineConflictError,
    Identity,
    Load,
)
from grpo_runtime.engines.fleet.idleness import IdleTime
from grpo_runtime.engines.fleet.liveness import Limits, Look, Signs
from grpo_runtime.engines.fleet.membership import Member, MemberState
from grpo_runtime.engines.fleet.settings import FleetSettings
from grpo_runtime.rollouts.interface import EngineError, EngineGoneError, EngineTimeoutError

log = logging.getLogger(__name__)

_EVERY_STEP = {MemberState.STALE, MemberState.CURRENT}


class Roster:
    """The members by address. Every change of one is logged and wakes those who wait in `changed`."""

    def __init__(self, settings: FleetSettings, session: aiohttp.ClientSession) -> None:
        self.versions: list[PolicyVersion] = []
        """Of the weights that there have been for engines, the newest last."""
        self.busy: set[str] = set()
        """Instances whose engine is in a weight sync: its core answers no calls meanwhile."""
        self.num_lost = 0
        self.num_preemptions = 0
        """How often engines have taken a completion out of their KV cache since they were first seen."""
        self._settings = settings
        self._session = session
        self._members: dict[Address, Member] = {}
        self._looks: dict[Address, asyncio.Task[None]] = {}
        self._signs: dict[str, Signs] = {}
        """Signs of life by instance."""
        self._num_calls: Counter[str] = Counter()
        """Calls for completions that an instance has not answered."""
        self._counted: dict[str, float] = {}
        """By instance the preemptions that it had counted when they were last read."""
        self._uncounted: set[str] = set()
        """Instances that have worked since then."""
        self._idle = IdleTime()
        self._limits = Limits(settings.hung_after_seconds, settings.first_step_seconds)
        self._changed = asyncio.Event()
        self._conflict: EngineConflictError | None = None

    @property
    def newest(self) -> PolicyVersion | None:
        """The version of the newest weights; None before there are any."""
        return self.versions[-1] if self.versions else None

    def members(self) -> list[Member]:
        """All members, in the order of their addresses.

        Raises EngineConflictError once an engine has said that a later attempt has taken over.
        """
        if self._conflict is not None:
            raise self._conflict
        # a copy first: counts are read from another thread
        return [member for _, member in sorted(self._members.copy().items())]

    def find(self, instance: str) -> Member | None:
        """The member with this process, unless it is gone."""
        return next((member for member in self._members.values() if member.instance == instance), None)

    def client(self, member: Member) -> EngineClient:
        """Calls to the process of a member; a later one at its address refuses them."""
        return self._client(member.address).for_instance(member.instance)

    def apply(self, instance: str, change: Callable[[Member], Member]) -> None:
        """Change the member with this process; nothing happens when it is gone."""
        member = self.find(instance)
        if member is not None:
            self._put(change(member))

    def new_version(self, version: PolicyVersion, *, still_serve: bool) -> None:
        """There are newer weights: no member is Current any more. Those that were `still_serve`, where that
        may be, until they are paused."""
        self.versions = [*(before for before in self.versions if before != version), version]
        for member in list(self._members.values()):
            self._put(membership.outdated(member, still_serves=still_serve))

    def require_newest(self) -> None:
        """From now on only members with the newest weights are given work."""
        for member in list(self._members.values()):
            self._put(membership.serves_no_more(member))

    @contextlib.contextmanager
    def sampling(self, instance: str) -> Iterator[None]:
        """A call for completions to this process; one that raises nothing has been answered."""
        self._num_calls[instance] += 1
        self._uncounted.add(instance)
        self._note_idle(self.find(instance))
        try:
            yield
            if instance in self._signs:
                self._signs[instance] = liveness.warm(self._signs[instance])
        finally:
            self._num_calls[instance] -= 1
            self._note_idle(self.find(instance))
            if not self._num_calls[instance]:
                self.wake()

    async def wait_until_answered(self, instance: str) -> None:
        """Return once this process has answered every call for completions, or they have been taken back.
        That includes a call whose task is made and has not run yet."""
        # A call counts from the first step of its task on. The loop runs what is ready in the order in which
        # it became so, thus when this goes on each task that was made before it began has had its first step.
        await asyncio.sleep(0)
        while self._num_calls[instance]:
            await self.changed(timeout_seconds=self._settings.heartbeat_seconds)

    def take_idle_seconds(self) -> dict[str, float]:
        """Engine -> the seconds in which it could serve and had no call, or was paused, since they were last
        taken. May be called in another thread."""
        return self._idle.take(now=time.monotonic())

    def was_paused(self, member: Member, *, seconds: float) -> None:
        """The engine was paused for so long."""
        self._idle.add(member.label, seconds)

    def _note_idle(self, member: Member | None) -> None:
        if member is not None:
            is_idle = member.may_serve and not self._num_calls[member.instance]
            self._idle.note(member.label, is_idle=is_idle, now=time.monotonic())

    async def changed(self, *, timeout_seconds: float) -> None:
        """Return at the next change, or after the timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._changed.wait()

    async def refresh(self) -> None:
        """Begin to look at every address, and return when all have answered or a heartbeat has passed.

        A look that takes longer continues in the background.
        """
        listed = await resolve(self._settings.hosts)
        now = time.monotonic()
        for address in listed - self._members.keys():
            self._put(Member(address=address, last_seen=now))
        self._end_looks()
        for address, member in self._members.items():
            if address not in self._looks:
                self._looks[address] = asyncio.ensure_future(self._look(member))
        if self._looks:
            await asyncio.wait(self._looks.values(), timeout=self._settings.heartbeat_seconds)
        self._end_looks()
        self._judge()
        for member in list(self._members.values()):
            if membership.is_gone(member, is_listed=member.address in listed):
                self._put(membership.died(member))
                del self._members[member.address]

    def _end_looks(self) -> None:
        """Forget the looks that have ended, and raise what ended one of them unexpectedly."""
        for address in [address for address, look in self._looks.items() if look.done()]:
            self._looks.pop(address).result()

    def _judge(self) -> None:
        """Take the engines out that hang."""
        now = time.monotonic()
        members = {member.instance: member for member in self._members.values() if member.instance}
        self._signs = {
            instance: self._signs.get(instance) or liveness.first_signs(now) for instance in members
        }
        self._counted = {key: number for key, number in self._counted.items() if key in members}
        self._uncounted.intersection_update(members)
        for instance, member in members.items():
            if instance in self.busy:
                self._signs[instance] = liveness.excused(self._signs[instance], now=now)
            elif why := liveness.why_hung(self._signs[instance], limits=self._limits, now=now):
                self._take_out(member, why, has_refused=self._signs[instance].has_refused, now=now)
                self._signs[instance] = liveness.taken_out(self._signs[instance], now=now)

    def _take_out(self, member: Member, why_hung: str, *, has_refused: bool, now: float) -> None:
        """Give the requests of an engine to others. One that refuses calls is not hung but has ended."""
        if has_refused:
            changed = membership.unreachable(member, now=now)
            state = "has ended or cannot be reached, its requests go to other engines"
        else:
            changed = membership.hung(member, why_hung, now=now)
            state = f"hangs, its requests go to other engines: {why_hung}"
        lost_after = self._settings.lost_after_seconds
        self._put(membership.unanswered(changed, now=now, lost_after_seconds=lost_after))
        if changed is not member:
            log.warning("engine %s %s", member.label, state)
            self.wake()

    async def close(self) -> None:
        """End every look."""
        looks = list(self._looks.values())
        for look in looks:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)

    async def _look(self, member: Member) -> None:
        lost_after = self._settings.lost_after_seconds
        changed = member
        note: Callable[[Signs], Signs] = liveness.unanswered
        try:
            identity, look = await self._ask(member)
        except EngineConflictError as error:
            self._conflict = error
            self.wake()
            return
        except EngineError as error:
            log.debug("engine %s does not answer: %s", member.label, error)
            if not isinstance(error, EngineTimeoutError):
                # else it may be slow, which `_judge` decides
                note = partial(liveness.unanswered, has_refused=isinstance(error, EngineGoneError))
                changed = membership.unanswered(member, now=time.monotonic(), lost_after_seconds=lost_after)
        else:
            now = time.monotonic()
            note = partial(liveness.looked, look=look, version=member.version, now=now)
            if look is None or look.has_core_answered:
                changed = membership.seen(member, identity, newest=self.newest, now=now)
            if not identity.is_live:
                changed = membership.died(changed)
        if self._members.get(member.address) is not member:
            # a sync ended in the meantime, and what it found is newer
            return
        if member.instance in self._signs:
            self._signs[member.instance] = note(self._signs[member.instance])
        self._put(changed)

    async def _ask(self, member: Member) -> tuple[Identity, Look | None]:
        """Who answers at a member's address, and what it does, unless it is in a weight sync."""
        client = self._client(member.address)
        limit = self._settings.probe_timeout_seconds
        identity = await client.identity(timeout_seconds=limit)
        instance = member.instance
        if identity.instance != instance and identity.is_live:
            # what it has counted for an earlier attempt
            await self._load(identity.instance, client)
        if identity.instance != instance or not identity.is_live or instance in self.busy:
            return identity, None
        # the text of the numbers is worth the call only while they should rise, and once more
        has_calls = self._num_calls[instance] > 0
        load = await self._load(instance, client) if has_calls or instance in self._uncounted else None
        if not has_calls:
            self._uncounted.discard(instance)
        try:
            is_paused = await client.is_paused(timeout_seconds=limit)
        except EngineTimeoutError:
            is_paused = None
        if load is None or not has_calls:
            return identity, Look(is_paused)
        return identity, Look(is_paused, num_tokens=load.num_tokens, num_running=load.num_running)

    async def _load(self, instance: str, client: EngineClient) -> Load | None:
        """What a process has counted; of its preemptions those are added that are new."""
        load = await client.load(timeout_seconds=self._settings.probe_timeout_seconds)
        if load is not None:
            self.num_preemptions += int(
                load.num_preemptions - self._counted.get(instance, load.num_preemptions)
            )
            self._counted[instance] = load.num_preemptions
        return load

    def _client(self, address: Address) -> EngineClient:
        settings = self._settings
        return EngineClient(self._session, address, tokens=settings.tokens, attempt=settings.attempt)

    def _put(self, member: Member) -> None:
        before = self._members.get(member.address)
        self._members[member.address] = member
        self._note_idle(member)
        if before is not None and (before.state, before.instance) == (member.state, member.instance):
            if before.may_serve != member.may_serve:
                self.wake()
            return
        if before is not None and before.label != member.label:
            self._idle.note(before.label, is_idle=False, now=time.monotonic())
        is_replaced = before is not None and before.instance not in ("", member.instance)
        was_lost = before is not None and before.state == MemberState.LOST
        is_lost = member.state == MemberState.LOST and member.instance != ""
        if is_lost or (is_replaced and not was_lost):
            self.num_lost += 1
        # an engine goes from Stale to Current and back in every step
        is_routine = before is not None and {before.state, member.state} <= _EVERY_STEP
        level = logging.DEBUG if is_routine and not is_replaced else logging.INFO
        log.log(level, "engine %s at %s is %s", member.label, member.address, member.state)
        self.wake()

    def wake(self) -> None:
        """Wake those who wait for a change; a later call of `changed` waits for the next one."""
        self._changed.set()
        self._changed = asyncio.Event()


async def resolve(hosts: Sequence[Address]) -> set[Address]:
    """Every address of every host, now. A name that does not resolve yet has none."""
    loop = asyncio.get_running_loop()
    found: set[Address] = set()
    for host in hosts:
        try:
            entries = await loop.getaddrinfo(host.host, host.port, type=socket.SOCK_STREAM)
        except socket.gaierror:
            continue
        found |= {Address(str(entry[4][0]), host.port) for entry in entries}
    return found
