"""Engines that take every buffer, and take long for all of them: nothing stalls, and yet others wait."""

from contextlib import AsyncExitStack

import pytest
import torch
from at_once import messages_of_this_thread
from test_several_engines import sync
from weight_sources import FixedWeights
from worker_processes import EngineOfProcesses, digest_of, engines_of_processes

from grpo_runtime.weight_sync.deadlines import Deadlines
from grpo_runtime.weight_sync.interface import Peer, SenderSettings, TooSlowError, WeightSender
from grpo_runtime.weight_sync.registry import GLOO
from grpo_runtime.weight_sync.stream.host_copy import HostCopy

TIMEOUT_SECONDS = 32.0
"""Of which engines may wait for one another for a quarter, which is less than a slow one takes."""
NUM_BUFFERS = 10
BUFFER_BYTES = 4 << 20
"""The kernel does not take many of them before the engine does."""
LAYOUT = {"weight": (NUM_BUFFERS * BUFFER_BYTES // 4,)}

pytestmark = pytest.mark.at_once

Engines = dict[str, EngineOfProcesses]


def weights_of(step: int) -> dict[str, torch.Tensor]:
    return {"weight": torch.full(LAYOUT["weight"], float(step))}


def copy_of(step: int) -> HostCopy:
    return HostCopy(FixedWeights(weights_of(step).items()), buffer_bytes=BUFFER_BYTES)


def sender_to(engines: Engines, deadlines: Deadlines) -> WeightSender[object]:
    peers = {name: Peer(engine, host="127.0.0.1") for name, engine in engines.items()}
    return GLOO.make_sender(peers, SenderSettings(deadlines))


async def start_engines(stack: AsyncExitStack, **backends: str) -> Engines:
    """Engines by name, each with its backend."""
    engines: Engines = {}
    for name, backend in backends.items():
        engines |= await stack.enter_async_context(engines_of_processes(backend, name, layout=LAYOUT))
    return engines


async def require_served(engines: Engines, *, step: int) -> None:
    for engine in engines.values():
        assert await engine.served() == [[f"1.{step}", digest_of(weights_of(step))]]


def after_quick_syncs() -> Deadlines:
    deadlines = Deadlines(TIMEOUT_SECONDS)
    for phase in ("transfer", "shared transfer"):
        deadlines.note(phase, 0.1)
    return deadlines


async def test_an_engine_that_is_slower_than_the_others_is_named_and_they_get_the_weights() -> None:
    async with AsyncExitStack() as stack:
        messages = stack.enter_context(messages_of_this_thread())
        engines = await start_engines(stack, a="gloo", b="slow-gloo", c="gloo")
        deadlines = after_quick_syncs()
        sender = sender_to(engines, deadlines)
        assert await sender.init(engines) == {}
        assert await sender.start(engines) == {}
        failures = await sender.update(copy_of(1), engines=engines)
        assert failures.keys() == {"b"}
        assert isinstance(failures["b"], TooSlowError)
        assert "a transfer to 3 engines failed after 8 s, and no engine is to blame" in "".join(messages)
        assert await sender.finish("1.1", engines="ac") == {}
        quick = {name: engines[name] for name in "ac"}
        await require_served(quick, step=1)
        # it is not the group that is slow
        assert deadlines.shared_seconds() == TIMEOUT_SECONDS / 4

        # without it they are as quick as they were
        messages.clear()
        assert await sync(sender, copy_of(2), engines=set(quick), version="1.2") == set()
        assert messages == [], "not within what quick ones may take"
        await require_served(quick, step=2)
        await sender.shutdown()


@pytest.mark.parametrize(
    ("backend", "is_delivered"),
    [
        ("crowded-gloo", True),
        pytest.param("slow-gloo", False, marks=pytest.mark.matrix),
    ],
)
async def test_engines_that_are_all_slower_than_they_were_get_more_time_together(
    backend: str, is_delivered: bool
) -> None:
    """As when more of them share the way, or it has become slower."""
    async with AsyncExitStack() as stack:
        messages = stack.enter_context(messages_of_this_thread())
        engines = await start_engines(stack, a=backend, b=backend)
        deadlines = after_quick_syncs()
        sender = sender_to(engines, deadlines)
        assert await sender.init(engines) == {}
        assert await sender.start(engines) == {}
        failures = await sender.update(copy_of(1), engines=engines)
        assert failures.keys() == (set() if is_delivered else {"a", "b"})
        assert not any(isinstance(failure, TooSlowError) for failure in failures.values())
        assert deadlines.shared_seconds() == TIMEOUT_SECONDS / 2

        await sender.shutdown()
        for engine in engines.values():
            await engine.served()  # the transfer has ended in it too
        sender = sender_to(engines, deadlines)
        assert await sender.init(engines) == {}
        messages.clear()
        assert await sync(sender, copy_of(2), engines=set(engines), version="1.2") == set()
        assert messages == []  # together
        await require_served(engines, step=2)
        await sender.shutdown()


async def test_the_first_transfer_to_several_engines_may_take_long() -> None:
    async with AsyncExitStack() as stack:
        engines = await start_engines(stack, a="gloo", b="slow-gloo")
        sender = sender_to(engines, Deadlines(TIMEOUT_SECONDS))
        assert await sender.init(engines) == {}
        assert await sync(sender, copy_of(1), engines=set(engines), version="1.1") == set()
        await require_served(engines, step=1)
        await sender.shutdown()
