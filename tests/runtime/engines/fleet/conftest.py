"""Makes the helpers importable for the tests of this and the parent folder, and opens fleets of real
engines."""

import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from grpo_runtime.engines.fleet.fleet import Fleet

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]


@pytest.fixture
async def open_fleet() -> AsyncIterator[Callable[..., Any]]:
    """Opens a fleet of real engines for a trainer of `attempt`, which is closed after the test. `changes` are
    of its settings."""
    from grpo_api.v1alpha1.spec import SamplingSpec
    from grpo_runtime.engines.fleet.fleet import Fleet
    from grpo_runtime.engines.fleet.settings import FleetSettings, parse_hosts
    from grpo_runtime.settings import Tokens
    from grpo_runtime.weight_sync.registry import GLOO

    fleets: list[Fleet] = []

    async def open_one(*engines: Any, attempt: int, backend: Any = GLOO, **changes: Any) -> "Fleet":
        settings = FleetSettings(
            **{
                "hosts": parse_hosts(",".join(f"127.0.0.1:{engine.port}" for engine in engines)),
                "desired": len(engines),
                "attempt": attempt,
                "tokens": Tokens(data=engines[0].data_token, admin=engines[0].admin_token),
                "sampling": SamplingSpec(max_tokens=12),
                "sync_timeout_seconds": 40.0,
                "start_wait_seconds": 60.0,
                "empty_wait_seconds": 60.0,
                "heartbeat_seconds": 0.2,
            }
            | changes
        )
        fleets.append(Fleet(settings, backend=backend))
        return fleets[-1]

    yield open_one
    for fleet in fleets:
        await fleet.close()
