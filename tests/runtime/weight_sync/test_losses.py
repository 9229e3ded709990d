"""Engines that die, freeze, join or repeat themselves: what becomes of them and of the others, with every
backend of the product that reaches engines in other processes."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import pytest
import torch
from backends import OF_THE_PRODUCT, backend_called
from receiver_harness import accident, make_group_sender, packed, some_weights
from test_several_engines import sync
from weight_sources import FixedWeights
from worker_processes import EngineOfProcesses, digest_of, engines_of_processes

from grpo_runtime.weight_sync.deadlines import ANSWER_SECONDS
from grpo_runtime.weight_sync.interface import Failures, Reach, WeightSender

BETWEEN_PROCESSES = sorted(name for name, found in OF_THE_PRODUCT.items() if found.reach != Reach.PROCESS)
SELECTED = ("gloo", "shared_memory", "stand-in-nccl")
"""Of which `make test` has every loss. The others share all but the transfer with them, and have the losses
in it; the rest of theirs is in `make test-matrix`."""
OTHERS = sorted(set(BETWEEN_PROCESSES) - set(SELECTED))
TIMEOUT_SECONDS = 14.0
"""Of which a member that breaks the group may take a quarter and ANSWER_SECONDS. The rest is for the group
without it, also on a machine that is busy."""

Engines = Mapping[str, EngineOfProcesses]
Accident = Callable[[EngineOfProcesses], None]


def kill(engine: EngineOfProcesses, *, worker: int = -1) -> None:
    engine.kill(worker=worker)


def freeze(engine: EngineOfProcesses, *, worker: int = -1) -> None:
    engine.freeze(worker=worker)


pytestmark = pytest.mark.at_once
each_backend = pytest.mark.parametrize(
    "backend", [*SELECTED, *(pytest.param(name, marks=pytest.mark.matrix) for name in OTHERS)]
)
killed_or_hung = pytest.mark.parametrize("happens", [kill, freeze], ids=["killed", "hung"])


def sender_to(backend: str, engines: Engines) -> WeightSender[object]:
    return make_group_sender(backend, engines, timeout_seconds=TIMEOUT_SECONDS)


async def require_served(engines: Engines, *, seed: int, version: str) -> None:
    """Every worker of every engine has the weights to the last bit, under their version."""
    wanted = [version, digest_of(some_weights(seed))]
    for engine in engines.values():
        assert await engine.served() == [wanted] * engine.num_workers


@each_backend
@pytest.mark.parametrize("names", ["a", "abc"])
@pytest.mark.parametrize("num_workers", [1, 2])
async def test_every_worker_of_every_engine_gets_sync_after_sync(
    backend: str, names: str, num_workers: int
) -> None:
    async with engines_of_processes(backend, names, num_workers=num_workers) as engines:
        verbs: list[str] = []
        for engine in engines.values():
            engine.on_sent = verbs.append
        sender = sender_to(backend, engines)
        assert await sender.init(engines) == {}
        for seed in (1, 2):
            assert await sync(sender, packed(seed), engines=set(engines), version=f"1.{seed}") == set()
            await require_served(engines, seed=seed, version=f"1.{seed}")
        await sender.shutdown()
        # all in one group, and none alone
        assert verbs.count("init") == len(names) * num_workers


@each_backend
async def test_an_engine_that_joins_in_mid_step_gets_the_same_weights_and_then_shares_the_sender(
    backend: str,
) -> None:
    async with engines_of_processes(backend, "abc") as engines:
        first = {name: engines[name] for name in "ab"}
        weights = packed(1)
        sender = sender_to(backend, first)
        assert await sender.init(first) == {}
        assert await sync(sender, weights, engines=set(first), version="1.1") == set()

        joiner = sender_to(backend, {"c": engines["c"]})
        assert await joiner.init("c") == {}
        assert await sync(joiner, weights, engines={"c"}, version="1.1") == set()
        await require_served(engines, seed=1, version="1.1")

        together = sender_to(backend, engines)
        await sender.shutdown()
        await joiner.shutdown()
        assert await together.init(engines) == {}
        assert await sync(together, packed(2), engines=set(engines), version="1.2") == set()
        await require_served(engines, seed=2, version="1.2")
        await together.shutdown()


@each_backend
@killed_or_hung
@pytest.mark.parametrize("phase", ["init", "start", "update", "transfer", "finish"])
async def test_an_engine_that_is_lost_in_a_phase_is_named_and_the_others_get_the_weights(
    backend: str, phase: str, happens: Accident
) -> None:
    async with engines_of_processes(backend, "abc") as engines:
        await lose_one(backend, engines, phase=phase, happens=happens)


@pytest.mark.parametrize("backend", OTHERS)
@killed_or_hung
async def test_an_engine_that_is_lost_in_any_transfer_is_named_and_the_others_get_the_weights(
    backend: str, happens: Accident
) -> None:
    async with engines_of_processes(backend, "abc") as engines:
        await lose_one(backend, engines, phase="transfer", happens=happens)


@each_backend
@pytest.mark.parametrize(
    ("phase", "happens"),
    [
        pytest.param("transfer", kill, id="transfer-killed"),
        pytest.param("transfer", freeze, id="transfer-hung"),
        pytest.param("finish", kill, id="finish-killed"),
        pytest.param("init", kill, id="init-killed", marks=pytest.mark.matrix),
        pytest.param("init", freeze, id="init-hung", marks=pytest.mark.matrix),
        pytest.param("finish", freeze, id="finish-hung", marks=pytest.mark.matrix),
    ],
)
@pytest.mark.parametrize("worker", [0, pytest.param(1, marks=pytest.mark.matrix)])
async def test_an_engine_that_loses_one_of_two_workers_is_named_and_the_others_get_the_weights(
    backend: str, phase: str, happens: Callable[..., None], worker: int
) -> None:
    """Its other worker takes its part and answers."""
    async with engines_of_processes(backend, "abc", num_workers=2) as engines:
        await lose_one(backend, engines, phase=phase, happens=partial(happens, worker=worker))


async def lose_one(backend: str, engines: Engines, *, phase: str, happens: Accident) -> None:
    """Engine b is lost in a phase, and the others go on without it."""
    lost = engines["b"]
    sender = sender_to(backend, engines)

    async def verb(name: str, call: Callable[[set[str]], object], going: set[str]) -> set[str]:
        if phase == name:
            happens(lost)
        failures: Failures = await call(going)  # type: ignore[misc]
        assert failures.keys() <= {"b"}, failures
        return going - failures.keys()

    weights = packed(1, alter=accident(lambda: happens(lost))) if phase == "transfer" else packed(1)
    start = time.monotonic()
    going = await verb("init", sender.init, set(engines))
    going = await verb("start", sender.start, going)
    going = await verb("update", lambda names: sender.update(weights, engines=names), going)
    going = await verb("finish", lambda names: sender.finish("1.1", engines=names), going)
    assert going == {"a", "c"}
    # a quarter of the deadline for who stands still, or all of it in start and finish, but not twice
    assert time.monotonic() - start < 2 * TIMEOUT_SECONDS
    await require_served({name: engines[name] for name in "ac"}, seed=1, version="1.1")

    # the group without it is as good as any
    assert await sync(sender, packed(2), engines=going, version="1.2") == set()
    await require_served({name: engines[name] for name in "ac"}, seed=2, version="1.2")
    await sender.shutdown()


@each_backend
async def test_an_engine_that_was_hung_in_a_transfer_keeps_its_weights_and_comes_back(backend: str) -> None:
    async with engines_of_processes(backend, "ab") as engines:
        sender = sender_to(backend, engines)
        assert await sender.init(engines) == {}
        assert await sender.start(engines) == {}
        weights = packed(1, alter=accident(engines["b"].freeze))
        assert (await sender.update(weights, engines=engines)).keys() == {"b"}
        assert await sender.finish("1.1", engines="a") == {}
        await sender.shutdown()
        engines["b"].thaw()
        await require_served({"b": engines["b"]}, seed=0, version="initial")

        alone = sender_to(backend, {"b": engines["b"]})
        assert await alone.init("b") == {}
        assert await sync(alone, packed(1), engines={"b"}, version="1.1") == set()
        await require_served(engines, seed=1, version="1.1")
        await alone.shutdown()


@each_backend
async def test_an_engine_that_stood_still_for_a_while_fails_nobody_else(backend: str) -> None:
    """It says by itself that the group broke, as the others do: nobody is to blame."""
    async with engines_of_processes(backend, "abc") as engines:
        sender = sender_to(backend, engines)
        assert await sender.init(engines) == {}
        assert await sender.start(engines) == {}
        loop = asyncio.get_running_loop()

        def stand_still() -> None:
            engines["b"].freeze()
            stall = TIMEOUT_SECONDS * 0.25
            loop.call_soon_threadsafe(loop.call_later, stall + 0.5 * ANSWER_SECONDS, engines["b"].thaw)

        weights = packed(1, alter=accident(stand_still))
        failures = await sender.update(weights, engines=engines)
        assert failures.keys() <= {"b"}, failures
        going = engines.keys() - failures.keys()
        assert await sender.finish("1.1", engines=going) == {}
        await require_served({name: engines[name] for name in going}, seed=1, version="1.1")
        await sender.shutdown()


@each_backend
async def test_weights_that_are_late_are_waited_for_before_any_engine_is(backend: str) -> None:
    """As those of a sharded policy, when another rank comes late."""

    class Late(FixedWeights):
        def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
            threading.Event().wait(TIMEOUT_SECONDS * 0.25 + 0.5)  # another rank computes
            yield from super().tensors()

    async with engines_of_processes(backend, "ab") as engines:
        sender = sender_to(backend, engines)
        assert await sender.init(engines) == {}
        weights = backend_called(backend).prepare(Late(some_weights(1).items()))
        assert await sync(sender, weights, engines=set(engines), version="1.1") == set()
        await require_served(engines, seed=1, version="1.1")
        await sender.shutdown()


@each_backend
async def test_a_sender_that_was_succeeded_changes_nothing(backend: str) -> None:
    """A trainer of an earlier attempt that comes back: its engines are those of another one by now."""
    async with engines_of_processes(backend, "ab") as engines:
        stale, newer = sender_to(backend, engines), sender_to(backend, engines)
        assert await stale.init(engines) == {}
        assert await newer.init(engines) == {}
        assert await newer.start(engines) == {}
        failures = await stale.update(packed(3), engines=engines)
        assert failures.keys() == {"a", "b"}
        assert await sync(newer, packed(1), engines=set(engines), version="2.1") == set()
        await require_served(engines, seed=1, version="2.1")
        for sender in (stale, newer):
            await sender.shutdown()


@each_backend
async def test_a_repeated_finish_changes_nothing(backend: str) -> None:
    async with engines_of_processes(backend, "ab") as engines:
        sender = sender_to(backend, engines)
        assert await sender.init(engines) == {}
        assert await sync(sender, packed(1), engines=set(engines), version="1.1") == set()
        assert (await sender.finish("1.2", engines=engines)).keys() == {"a", "b"}
        await require_served(engines, seed=1, version="1.1")
        await sender.shutdown()


@each_backend
async def test_a_transfer_that_is_given_up_in_the_middle_leaves_the_old_weights(backend: str) -> None:
    async with engines_of_processes(backend, "ab") as engines:
        sender = sender_to(backend, engines)
        assert await sender.init(engines) == {}
        assert await sender.start(engines) == {}
        is_under_way = asyncio.Event()
        loop = asyncio.get_running_loop()
        weights = packed(1, alter=accident(lambda: loop.call_soon_threadsafe(is_under_way.set)))
        update = asyncio.ensure_future(sender.update(weights, engines=engines))
        await is_under_way.wait()
        update.cancel()
        await asyncio.gather(update, return_exceptions=True)
        await sender.shutdown()
        successor = sender_to(backend, engines)
        assert await successor.init(engines) == {}
        assert await sync(successor, packed(2), engines=set(engines), version="2.2") == set()
        await require_served(engines, seed=2, version="2.2")
        await successor.shutdown()
