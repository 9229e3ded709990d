"""What real engines count."""

import asyncio
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from grpo_runtime.engines import routes
from grpo_runtime.engines.fleet.engine_client import EngineClient, Load, open_session


async def load_of(client: EngineClient, *, timeout_seconds: float) -> Load:
    """What the engine has to do, and has done."""
    load = await client.load(timeout_seconds=timeout_seconds)
    assert load is not None
    return load


async def num_tokens(client: EngineClient) -> float:
    return (await load_of(client, timeout_seconds=10)).num_tokens


async def until_sampled(client: EngineClient, count: int, *, while_running: asyncio.Future[Any]) -> None:
    """Return when the engine has sampled so many tokens more."""
    before = await num_tokens(client)
    while await num_tokens(client) < before + count:
        assert not while_running.done()


async def metric(engine: Any, name: str, *, attempt: int) -> float:
    headers = {"Authorization": f"Bearer {engine.admin_token}", routes.ATTEMPT_HEADER: str(attempt)}
    async with (
        open_session() as session,
        session.get(engine.url(routes.METRICS_PATH), headers=headers) as response,
    ):
        families = text_string_to_metric_families(await response.text())
        return sum(s.value for family in families for s in family.samples if s.name == name)
