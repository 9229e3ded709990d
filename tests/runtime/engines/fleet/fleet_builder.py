"""Fleets of fake engines."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import polling
import torch
from fake_engine_server import FAKE_BACKEND, FakeEngine
from fake_vllm import Happening
from guard_environment import ADMIN, DATA
from weight_sources import FixedWeights

from grpo_api.contract.versions import PolicyVersion
from grpo_api.v1alpha1.spec import SamplingSpec
from grpo_runtime.engines.fleet.core import FleetCore
from grpo_runtime.engines.fleet.engine_client import Address
from grpo_runtime.engines.fleet.settings import FleetSettings
from grpo_runtime.rollouts.interface import GenerateRequest, Probe, Rollout, SyncReport
from grpo_runtime.settings import Tokens
from grpo_runtime.weight_sync.interface import Backend

GIVE_UP_SECONDS = 30.0
TOKENS = Tokens(data=DATA, admin=ADMIN)
PROBE = Probe(token_ids=(1, 2, 3), logprobs=(-1.0, -1.0), tolerance=1e-4)
"""What a `FakeVLLM` answers as long as nobody tells it otherwise."""


def fleet_settings_of(*hosts: Address, **changes: Any) -> FleetSettings:
    """Settings whose deadlines are never reached, and whose looks are frequent."""
    return FleetSettings(
        **{
            "hosts": hosts,
            "desired": len(hosts),
            "attempt": 1,
            "tokens": TOKENS,
            "sampling": SamplingSpec(temperature=1.0, max_tokens=4),
            "sync_timeout_seconds": GIVE_UP_SECONDS,
            "empty_wait_seconds": GIVE_UP_SECONDS,
            "hung_after_seconds": GIVE_UP_SECONDS,
            "first_step_seconds": GIVE_UP_SECONDS,
            "lost_after_seconds": GIVE_UP_SECONDS,
            "heartbeat_seconds": 0.05,
            "probe_timeout_seconds": GIVE_UP_SECONDS,
        }
        | changes
    )


@asynccontextmanager
async def unsynced_fleet_of(
    *engines: FakeEngine,
    others: Sequence[Address] = (),
    backend: Backend[Any] = FAKE_BACKEND,
    **changes: Any,
) -> AsyncIterator[FleetCore]:
    """A fleet of served engines, for whose tests GIVE_UP_SECONDS are enough; `others` are listed too."""
    async with asyncio.timeout(GIVE_UP_SECONDS), AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine.serving())
        hosts = [*others, *(engine.address for engine in engines)]
        fleet = FleetCore(fleet_settings_of(*hosts, **{"desired": len(engines), **changes}), backend=backend)
        stack.push_async_callback(fleet.close)
        yield fleet


@asynccontextmanager
async def fleet_of(
    *engines: FakeEngine, others: Sequence[Address] = (), **changes: Any
) -> AsyncIterator[FleetCore]:
    """The same, when all engines have the weights of step 0."""
    async with unsynced_fleet_of(*engines, others=others, **changes) as fleet:
        await sync(fleet, step=0)
        yield fleet


async def sync(fleet: FleetCore, *, step: int, probe: Probe | None = PROBE) -> SyncReport:
    """Give the engines weights that are different at each step."""
    version = PolicyVersion(1, step)
    weights = FixedWeights([("w", torch.full((4,), float(step)))])
    return await fleet.sync(weights, version=version, probe=probe)


def requests(count: int) -> list[GenerateRequest]:
    """Of one prompt, with seeds from 100."""
    return [GenerateRequest(prompt_ids=(4,), seed=100 + index) for index in range(count)]


def seeds(rollouts: Sequence[Rollout]) -> list[int]:
    """What a `FakeVLLM` was given as the seeds of completions."""
    return [rollout.completion_ids[0] for rollout in rollouts]


def versions(rollouts: Sequence[Rollout]) -> set[str]:
    """Of all tokens."""
    return {str(span.version) for rollout in rollouts for span in rollout.versions}


async def until(condition: Callable[[], bool]) -> None:
    """Return when it holds."""
    await polling.until(condition, seconds=GIVE_UP_SECONDS)


async def hang() -> None:
    """What may happen while an engine answers: it never does."""
    await asyncio.Event().wait()


def raising(error: Exception) -> Happening:
    """Something that may happen while an engine answers: an error."""

    async def happen() -> None:
        raise error

    return happen
