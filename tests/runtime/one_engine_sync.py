"""The weight sync of one engine, whose errors are raised."""

from typing import Any

from grpo_runtime.engines.fleet.engine_client import EngineClient
from grpo_runtime.engines.fleet.engine_sync import EngineSync, EngineSyncReport, SyncJob
from grpo_runtime.weight_sync.deadlines import Deadlines
from grpo_runtime.weight_sync.interface import Backend


class OneEngineSync:
    """The sync of an engine that shares its sender with no other. `run` raises what the engine fails with."""

    def __init__(
        self,
        client: EngineClient,
        *,
        backend: Backend[Any],
        timeout_seconds: float,
        workers_per_engine: int = 1,
        cores_per_engine: int = 1,
        transfers_first: bool = False,
    ) -> None:
        self._sync = EngineSync(
            {str(client.address): client},
            backend=backend,
            deadlines=Deadlines(timeout_seconds),
            workers_per_engine=workers_per_engine,
            cores_per_engine=cores_per_engine,
            transfers_first=transfers_first,
        )

    async def run(self, job: SyncJob) -> EngineSyncReport:
        [outcome] = (await self._sync.run(job)).values()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def close(self) -> None:
        """Let go of the sender."""
        await self._sync.close()
