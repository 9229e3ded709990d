"""The trainer's end for one engine, which reads a version by itself and waits for no other."""

import asyncio
import secrets
import time

from grpo_runtime.weight_sync.disk.publisher import Publisher
from grpo_runtime.weight_sync.disk.stored_stream import StoredStream
from grpo_runtime.weight_sync.interface import Peer, SenderSettings, WeightSyncError
from grpo_runtime.weight_sync.stream.host_copy import HostCopy
from grpo_runtime.weight_sync.stream.update_message import update_info


class StoreConnection:
    """Tells an engine which version to read; see `Connection`."""

    def __init__(self, peer: Peer, settings: SenderSettings, *, publisher: Publisher) -> None:
        self.channel = peer.channel
        self._deadlines = settings.deadlines
        self._publisher = publisher
        self._sender = secrets.token_hex(8)

    async def init(self) -> None:
        """Tell the engine whose versions it reads from now on."""
        await self.channel.init({"sender": self._sender})

    async def update(self, weights: HostCopy) -> None:
        """Wait until the version is in the store; the engine answers when it has read and checked it."""
        published = await asyncio.shield(asyncio.wrap_future(self._publisher.published(weights)))
        stream = StoredStream(sender=self._sender, name=published.name, tag=published.tag)
        limit, start = self._deadlines.of("transfer"), time.monotonic()
        info = update_info(weights, connection=str(stream), stall_seconds=self._deadlines.stall_seconds())
        with self._publisher.being_read(published.name):
            try:
                async with asyncio.timeout(limit):
                    await self.channel.update(info)
            except TimeoutError as error:
                raise WeightSyncError(
                    f"the engine has not read {published.name} within {limit:g} s"
                ) from error
            except WeightSyncError:
                await asyncio.to_thread(self._publisher.doubt, weights)
                raise
        self._deadlines.note("transfer", time.monotonic() - start)

    async def finish(self, version: str) -> None:
        """Let the engine load what it has read."""
        await self.channel.finish(version)

    async def shutdown(self) -> None:
        """Nothing: the engine holds no connection, and what is being written serves others too."""
