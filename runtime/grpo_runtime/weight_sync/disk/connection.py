"""The trainer's end for one engine, which reads a version by itself and waits for no other."""

import asyncio
import secrets
import time

from grpo_runtime.errors import SupersededError
from grpo_runtime.weight_sync.disk.publisher import Published, Publisher
from grpo_runtime.weight_sync.disk.stored_stream import StoredStream
from grpo_runtime.weight_sync.disk.version_manifest import DamagedVersionError
from grpo_runtime.weight_sync.interface import Peer, SenderSettings, WeightSyncError, WrongTagError
from grpo_runtime.weight_sync.stream.host_copy import HostCopy
from grpo_runtime.weight_sync.stream.update_message import update_info

_LONGEST_FRACTION = 0.5
"""Of the whole deadline, so that what is waited for here ends before it."""


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
        """Let the engine read the version, once it is in the store; it answers when it has checked it."""
        with self._publisher.being_read(weights):
            await self._update(weights, await self._published(weights))

    async def finish(self, version: str) -> None:
        """Let the engine load what it has read."""
        await self.channel.finish(version)

    async def shutdown(self) -> None:
        """Nothing: the engine holds no connection, and what is being written serves others too."""

    async def _published(self, weights: HostCopy) -> Published:
        """The version, which is there unless it is written again just now: the engine is paused meanwhile."""
        patience = _LONGEST_FRACTION * self._deadlines.timeout_seconds
        try:
            async with asyncio.timeout(patience):
                return await self._publisher.wait_until_published(weights, stall_seconds=patience)
        except TimeoutError:
            # the engine did not run into a deadline, so it must not look like one that stands still
            raise WeightSyncError(f"the weights are not in the store within {patience:g} s") from None
        except SupersededError as error:
            raise WeightSyncError(str(error)) from error

    async def _update(self, weights: HostCopy, published: Published) -> None:
        stream = StoredStream(sender=self._sender, name=published.name, tag=published.tag)
        limit, start = self._deadlines.of("transfer"), time.monotonic()
        info = update_info(weights, connection=str(stream), stall_seconds=self._deadlines.stall_seconds())
        try:
            async with asyncio.timeout(limit):
                await self.channel.update(info)
        except TimeoutError as error:
            raise WeightSyncError(f"the engine has not read {published.name} within {limit:g} s") from error
        except (DamagedVersionError, WrongTagError):
            self._publisher.check_again(weights)
            raise
        self._deadlines.note("transfer", time.monotonic() - start)
