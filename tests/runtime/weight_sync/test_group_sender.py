"""The ranks that engines are given, and which of them count as too slow for the others when each has its turn
alone after one to several."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import cast

import pytest
import torch
from receiver_harness import CallChannel
from torch.distributed import HashStore, Store, TCPStore
from weight_sources import FixedWeights

from grpo_runtime.weight_sync.deadlines import Deadlines
from grpo_runtime.weight_sync.group import GroupMember, Invite
from grpo_runtime.weight_sync.group_sender import GroupSender
from grpo_runtime.weight_sync.interface import (
    Failures,
    GroupBrokenError,
    Info,
    NeedsAllWeightsError,
    Peer,
    SenderSettings,
    TooSlowError,
    WeightSyncError,
    WrongTagError,
)
from grpo_runtime.weight_sync.stream.host_copy import HostCopy

pytestmark = pytest.mark.at_once

TIMEOUT_SECONDS = 8.0
LIMIT_SECONDS = TIMEOUT_SECONDS / 4
"""What a transfer to several engines may take, after quick ones."""
GIVE_UP_SECONDS = 60.0
BUFFER_BYTES = 4096
WEIGHTS = torch.ones(BUFFER_BYTES // 4)
"""They and their tag are two buffers: a sender gives up between two."""


@dataclass(frozen=True)
class Transfer:
    """What becomes of one: its first buffer takes so many seconds, and then it breaks, or goes on at once."""

    seconds: float = 0.0
    breaks: bool = False


ARRIVES = Transfer()
BREAKS = Transfer(breaks=True)
OVER_LIMIT = Transfer(1.2 * LIMIT_SECONDS)
NEVER_ENDS = Transfer(GIVE_UP_SECONDS)


class Group:
    """The trainer's end of a group in which a transfer becomes what it does."""

    def __init__(self, transfer: Transfer) -> None:
        self.transfer = transfer
        self.has_arrived = False
        self.is_over = threading.Event()
        self._is_left = threading.Event()
        self._num_buffers = 0

    def broadcast(self, buffer: torch.Tensor, *, timeout_seconds: float) -> "Group":
        return self

    def wait(self) -> torch.Tensor:
        self._num_buffers += 1
        if self._num_buffers == 1 and (self._is_left.wait(self.transfer.seconds) or self.transfer.breaks):
            self.is_over.set()
            raise GroupBrokenError("nothing goes on")
        if self._num_buffers == 2:
            self.has_arrived = True
            self.is_over.set()
        return torch.empty(0)

    def close(self) -> None:
        self._is_left.set()


class StoreOfOne(HashStore):
    """Nobody comes to it."""

    port = 1


def host_for_nobody(address: str, *, timeout_seconds: float) -> TCPStore:
    return cast(TCPStore, StoreOfOne())


class Way:
    """From a trainer to its engines: what becomes of a transfer to several, and of each to one, in order."""

    def __init__(self, *, together: Transfer, alone: Iterator[Transfer]) -> None:
        self.turns: list[str] = []
        """The engines that have had a turn alone, in order."""
        self.places: dict[str, tuple[int, int]] = {}
        """The first rank that an engine was given last, and the size of its group."""
        self._together, self._alone = together, alone
        self.group = Group(together)

    def join(self, store: Store, member: GroupMember, *, own_address: str, invite: Invite) -> Group:
        invite(b"")
        self.group = Group(self._together if member.size > 2 else next(self._alone))
        return self.group


class Engine(CallChannel):
    """One at the end of a way. It does all it is asked, but may refuse weights."""

    def __init__(self, name: str, way: Way, *, refuses: WeightSyncError | None = None) -> None:
        self._name, self._way, self._refuses = name, way, refuses

    async def init(self, info: Info) -> None:
        self._way.places[self._name] = info["first_rank"], info["size"]
        if info["size"] == 2:
            self._way.turns.append(self._name)

    async def start(self) -> None:
        return

    async def update(self, info: Info) -> None:
        if self._refuses is not None:
            raise self._refuses
        group = self._way.group
        took = group.transfer.seconds
        # so it learns that no second buffer comes
        await asyncio.to_thread(group.is_over.wait, took + LIMIT_SECONDS / 2 if took else GIVE_UP_SECONDS)
        if not group.has_arrived:
            raise GroupBrokenError("nothing goes on")


async def update(
    way: Way,
    names: str,
    *,
    deadlines: Deadlines,
    weights: HostCopy | None = None,
    refusals: Mapping[str, WeightSyncError] = {},
) -> Failures:
    """One update of these engines by a new sender; returns which of them failed. `refusals` are what engines
    refuse with."""
    engines = {name: Engine(name, way, refuses=refusals.get(name)) for name in names}
    peers = {name: Peer(engine, host="127.0.0.1") for name, engine in engines.items()}
    sender = GroupSender(peers, SenderSettings(deadlines), join=way.join, host=host_for_nobody)
    weights = weights or all_weights()
    async with asyncio.timeout(GIVE_UP_SECONDS):
        assert await sender.init(names) == {}
        failures = await sender.update(weights, engines=names)
        await sender.shutdown()
    return failures


def all_weights() -> HostCopy:
    return HostCopy(FixedWeights([("weight", WEIGHTS)]), buffer_bytes=BUFFER_BYTES)


def after_quick_syncs() -> Deadlines:
    deadlines = Deadlines(TIMEOUT_SECONDS)
    for phase in ("transfer", "shared transfer"):
        deadlines.note(phase, 0.01)
    return deadlines


def too_slow(failures: Failures) -> set[str]:
    return {name for name, error in failures.items() if isinstance(error, TooSlowError)}


async def test_every_worker_of_every_engine_has_a_rank_of_its_own() -> None:
    way = Way(together=ARRIVES, alone=iter(()))
    peers = {
        name: Peer(Engine(name, way), host="127.0.0.1", num_workers=num_workers)
        for name, num_workers in (("a", 2), ("b", 1), ("c", 3))
    }
    settings = SenderSettings(Deadlines(TIMEOUT_SECONDS))
    sender = GroupSender(peers, settings, join=way.join, host=host_for_nobody)
    assert await sender.init("abc") == {}
    await sender.shutdown()
    assert way.places == {"a": (1, 7), "b": (3, 7), "c": (4, 7)}


async def test_engines_that_wait_for_their_turn_when_the_deadline_ends_are_not_too_slow() -> None:
    """As when the way to all of them is away for a while."""
    way = Way(together=BREAKS, alone=iter([BREAKS, NEVER_ENDS]))
    failures = await update(way, "abcde", deadlines=after_quick_syncs())
    assert too_slow(failures) == set()
    said = Counter(str(error) for error in failures.values())
    assert said == {
        "the group of this transfer broke: nothing goes on": 1,
        "not done within 8 s": 1,
        "its turn alone did not come within 8 s": 3,
    }


async def test_nobody_is_too_slow_when_a_transfer_to_all_of_them_ends_with_the_deadline() -> None:
    """The first one may take that long, and none of them was tried alone."""
    way = Way(together=NEVER_ENDS, alone=iter(()))
    failures = await update(way, "abc", deadlines=Deadlines(TIMEOUT_SECONDS))
    assert failures.keys() == set("abc")
    assert too_slow(failures) == set()


@contextmanager
def weights_that_do_not_come() -> Iterator[HostCopy]:
    """Not before the block ends."""
    may_come = threading.Event()

    class Late(FixedWeights):
        def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
            may_come.wait(GIVE_UP_SECONDS)
            return super().tensors()

    try:
        yield HostCopy(Late([("weight", WEIGHTS)]), buffer_bytes=BUFFER_BYTES)
    finally:
        may_come.set()


async def test_no_engine_is_too_slow_when_the_trainer_has_no_weights_for_them_in_time() -> None:
    with weights_that_do_not_come() as weights:
        way = Way(together=ARRIVES, alone=iter(()))
        failures = await update(way, "ab", deadlines=after_quick_syncs(), weights=weights)
    assert {name: (type(error), str(error)) for name, error in failures.items()} == dict.fromkeys(
        "ab", (WeightSyncError, "the trainer had no weights to send within 8 s")
    )


async def test_nothing_is_learned_of_engines_that_had_no_turn_after_a_transfer_that_took_too_long() -> None:
    way = Way(together=OVER_LIMIT, alone=iter([ARRIVES, NEVER_ENDS]))
    deadlines = after_quick_syncs()
    failures = await update(way, "abc", deadlines=deadlines)
    assert len(failures) == 2
    assert too_slow(failures) == set()
    # one of those may be slower than the others: all together are not
    assert deadlines.shared_seconds() == LIMIT_SECONDS


async def test_an_engine_that_is_too_slow_is_named_though_the_turn_of_others_does_not_come() -> None:
    way = Way(together=OVER_LIMIT, alone=iter([ARRIVES, OVER_LIMIT, NEVER_ENDS]))
    deadlines = after_quick_syncs()
    failures = await update(way, "abcd", deadlines=deadlines)
    assert too_slow(failures) == {way.turns[1]}
    assert failures.keys() == set("abcd") - {way.turns[0]}
    assert deadlines.shared_seconds() == LIMIT_SECONDS


async def test_no_engine_is_always_the_last_to_have_its_turn() -> None:
    """A deadline that ends before all have had theirs would always find the same ones."""
    last = set()
    for _ in range(20):
        way = Way(together=BREAKS, alone=repeat(ARRIVES))
        assert await update(way, "abcde", deadlines=after_quick_syncs()) == {}
        last.add(way.turns[-1])
    assert len(last) > 1


async def test_an_engine_whose_company_is_gone_may_take_longer_than_several_may() -> None:
    way = Way(together=BREAKS, alone=iter([OVER_LIMIT]))
    refusals = {"a": WeightSyncError("no such model")}
    assert await update(way, "ab", deadlines=after_quick_syncs(), refusals=refusals) == refusals


async def test_an_engine_that_must_be_given_all_weights_is_none_that_is_as_slow_as_another() -> None:
    way = Way(together=OVER_LIMIT, alone=iter([OVER_LIMIT]))
    deadlines = after_quick_syncs()
    refusals = {"b": NeedsAllWeightsError("it has kept none")}
    failures = await update(way, "ab", deadlines=deadlines, refusals=refusals)
    assert failures.keys() == set("ab")
    assert too_slow(failures) == {"a"}
    assert deadlines.shared_seconds() == LIMIT_SECONDS


async def test_an_update_that_begins_late_ends_with_the_deadline_all_the_same() -> None:
    way = Way(together=ARRIVES, alone=iter([NEVER_ENDS]))
    sender = GroupSender(
        {"a": Peer(Engine("a", way), host="127.0.0.1")},
        SenderSettings(Deadlines(GIVE_UP_SECONDS)),
        join=way.join,
        host=host_for_nobody,
    )
    assert await sender.init("a") == {}
    async with asyncio.timeout(GIVE_UP_SECONDS / 2):
        failures = await sender.update(all_weights(), engines="a", ends_at=time.monotonic() + 0.1)
    assert failures.keys() == {"a"}
    # nobody is left behind in the group
    assert way.group.is_over.wait(GIVE_UP_SECONDS / 2)


async def test_an_engine_that_is_alone_because_nobody_is_to_blame_may_take_longer_too() -> None:
    way = Way(together=BREAKS, alone=iter([OVER_LIMIT, ARRIVES]))
    assert await update(way, "ab", deadlines=after_quick_syncs()) == {}


@pytest.mark.parametrize(
    "error",
    [
        WeightSyncError("refused"),
        GroupBrokenError("a member is gone"),
        NeedsAllWeightsError("it has others"),
        WrongTagError("refused"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_the_answer_of_an_engine_tells_which_error_it_was(error: WeightSyncError) -> None:
    answer = f'update: HTTP 500: {{"error": "Worker failed with error {error}"}}'
    told = WeightSyncError.told_in(answer)
    assert (type(told), str(told)) == (type(error), answer)
