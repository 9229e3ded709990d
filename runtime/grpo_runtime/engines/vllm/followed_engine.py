"""vLLM's engine client in this process as an engine that follows a store."""

from collections.abc import Iterator
from contextlib import contextmanager

from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
from vllm.v1.engine.async_llm import AsyncLLM

from grpo_runtime.engines.follow.openai_guard import SERVED
from grpo_runtime.weight_sync.interface import Info, WeightSyncError


class VllmFollowedEngine:
    """A `FollowedEngine`. What vLLM raises for a verb is a WeightSyncError: its engine keeps its weights or
    ends, with its server."""

    def __init__(self, client: AsyncLLM) -> None:
        self._client = client

    async def name_first(self, version: str) -> None:
        """Tell vLLM which weights it was started with."""
        await self._client.update_weight_version(version)

    async def pause(self) -> None:
        """Hold all requests, and let none begin until `resume`."""
        SERVED.may_begin.clear()
        await self._client.pause_generation(mode="keep", clear_cache=True)

    async def resume(self) -> None:
        """Go on with the weights that the engine has now, and let requests begin."""
        await self._client.resume_generation()
        SERVED.may_begin.set()

    def serves(self, version: str) -> None:
        """Say in every answer from now on that it begins with these weights."""
        SERVED.version = version

    async def init(self, info: Info) -> None:
        """Let the engine forget an earlier sender."""
        with _refusals():
            await self._client.init_weight_transfer_engine(WeightTransferInitRequest(init_info=dict(info)))

    async def start(self) -> None:
        """Open an update."""
        with _refusals():
            await self._client.start_weight_update()

    async def update(self, info: Info) -> None:
        """Let the engine read what `info` names."""
        with _refusals():
            await self._client.update_weights(WeightTransferUpdateRequest(update_info=dict(info)))

    async def finish(self, version: str) -> None:
        """Load what was read, as `version`."""
        with _refusals():
            await self._client.finish_weight_update(version)

    async def shutdown(self) -> None:
        """Let the engine forget the sender."""
        with _refusals():
            await self._client.shutdown_weight_transfer_engine()


@contextmanager
def _refusals() -> Iterator[None]:
    """What a worker raises comes from vLLM's core as an exception of any kind, with its text."""
    try:
        yield
    except Exception as error:
        raise WeightSyncError(str(error)) from error
