"""The verbs of weight transfer as calls of an engine's admin routes."""

from grpo_runtime.engines import routes
from grpo_runtime.engines.fleet.engine_client import EngineClient
from grpo_runtime.rollouts.errors import EngineError
from grpo_runtime.weight_sync.interface import Info, WeightSyncError


class HttpChannel:
    """A `ControlChannel` to one engine, each of whose calls has the deadline."""

    def __init__(self, client: EngineClient, *, timeout_seconds: float) -> None:
        self._client = client
        self._timeout_seconds = timeout_seconds

    async def init(self, info: Info) -> None:
        """Let the engine connect to the sender that wrote `info`."""
        await self._verb(routes.INIT_PATH, {"init_info": dict(info)})

    async def start(self) -> None:
        """Open an update."""
        await self._verb(routes.START_PATH, {})

    async def update(self, info: Info) -> None:
        """Let the engine receive; it answers when it has checked everything."""
        await self._verb(routes.UPDATE_PATH, {"update_info": dict(info)})

    async def finish(self, version: str) -> None:
        """Apply what was received."""
        await self._verb(routes.FINISH_PATH, {"weight_version": version})

    async def shutdown(self) -> None:
        """Let the engine close its connection to the sender."""
        await self._verb(routes.SHUTDOWN_PATH, {})

    async def _verb(self, path: str, body: Info) -> None:
        try:
            await self._client.weight_verb(path, body, timeout_seconds=self._timeout_seconds)
        except EngineError as error:
            raise WeightSyncError.told_in(str(error)) from error
