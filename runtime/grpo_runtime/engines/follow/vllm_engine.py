"""vLLM's engine client of this process as an engine that follows."""

from collections.abc import Iterator
from contextlib import contextmanager

from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
from vllm.v1.engine.async_llm import AsyncLLM

from grpo_runtime.engines.follow.guard import SERVED
from grpo_runtime.weight_sync.interface import Info, WeightSyncError


class VllmFollowedEngine:
    """See `FollowedEngine`. What vLLM raises for a verb is a WeightSyncError: its engine keeps its weights or
    ends, with its server."""

    def __init__(self, client: AsyncLLM) -> None:
        self._client = client

    async def pause(self) -> None:
        """See `FollowedEngine`."""
        SERVED.may_begin.clear()
        await self._client.pause_generation(mode="keep", clear_cache=True)

    async def resume(self) -> None:
        """See `FollowedEngine`."""
        await self._client.resume_generation()
        SERVED.may_begin.set()

    def serves(self, version: str) -> None:
        """See `FollowedEngine`."""
        SERVED.version = version

    async def init(self, info: Info) -> None:
        """See `ControlChannel`."""
        with _refusals():
            await self._client.init_weight_transfer_engine(WeightTransferInitRequest(init_info=dict(info)))

    async def start(self) -> None:
        """See `ControlChannel`."""
        with _refusals():
            await self._client.start_weight_update()

    async def update(self, info: Info) -> None:
        """See `ControlChannel`."""
        with _refusals():
            await self._client.update_weights(WeightTransferUpdateRequest(update_info=dict(info)))

    async def finish(self, version: str) -> None:
        """See `ControlChannel`."""
        with _refusals():
            await self._client.finish_weight_update(version)

    async def shutdown(self) -> None:
        """See `ControlChannel`."""
        with _refusals():
            await self._client.shutdown_weight_transfer_engine()


@contextmanager
def _refusals() -> Iterator[None]:
    """What a worker raises comes from vLLM's core as an exception of any kind, with its text."""
    try:
        yield
    except Exception as error:
        raise WeightSyncError(str(error)) from error
