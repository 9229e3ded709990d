"""The trainer's end of a connection to one engine on its machine, whichever transport the bytes take."""

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol, TypeVar

from grpo_runtime.weight_sync.interface import GroupBrokenError, Info, Peer, SenderSettings, WeightSyncError
from grpo_runtime.weight_sync.local.sockets import KEY_CHARACTERS, WorkerListener
from grpo_runtime.weight_sync.stream.host_copy import HostCopy
from grpo_runtime.weight_sync.stream.update_message import update_info
from grpo_runtime.weight_sync.together import act_together, read_outcome

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class LocalTransport(Protocol):
    """How the bytes come to the workers of one engine. Blocking, one call after the other."""

    def open(self) -> Info:
        """Get ready; returns what the verb `init` tells the workers besides the socket."""
        ...

    def deliver(self, weights: HostCopy, workers: Sequence[socket.socket], *, stall_seconds: float) -> None:
        """Let the workers have every buffer, in order. Raises OSError for a worker that is gone or does not
        go on for `stall_seconds`."""
        ...

    def finished(self) -> None:
        """The engine has loaded what was delivered."""
        ...

    def close(self) -> None:
        """Let go of everything; some worker may still read it."""
        ...


class LocalConnection:
    """Sockets to the workers of one engine, and a transport for the bytes; see `Connection`."""

    def __init__(self, peer: Peer, settings: SenderSettings, *, transport: LocalTransport) -> None:
        self.channel = peer.channel
        self._num_workers = peer.num_workers
        self._transport = transport
        self._deadlines = settings.deadlines
        self._key = secrets.token_hex(KEY_CHARACTERS // 2)
        self._workers: list[socket.socket] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weight-sender")

    async def init(self) -> None:
        """Let every worker of the engine come to a socket."""
        details = await self._in_thread(self._transport.open)
        with WorkerListener(num_workers=self._num_workers, key=self._key) as listener:
            stall = self._deadlines.stall_seconds()
            accepting = self._in_thread(partial(listener.accept, stall_seconds=stall))
            await self.channel.init({**listener.init.model_dump(), **details})
            self._workers = await accepting

    async def update(self, weights: HostCopy) -> None:
        """Hand over the copy while it is being made; the engine answers when it has checked everything."""
        if not self._workers:
            raise WeightSyncError("the engine is not connected: call init first")
        first = partial(weights.wait_for_first_buffer, timeout_seconds=self._deadlines.timeout_seconds)
        await asyncio.to_thread(first)
        stall, start = self._deadlines.stall_seconds(), time.monotonic()
        for worker in self._workers:
            worker.settimeout(stall)
        delivering = self._in_thread(
            partial(self._deliver, weights, list(self._workers), stall_seconds=stall)
        )
        info = update_info(weights, connection=self._key, stall_seconds=stall)
        errors = await act_together({"engine": self.channel.update(info)}, delivering, stall_seconds=stall)
        for error in errors.values():
            raise error
        self._deadlines.note("transfer", time.monotonic() - start)

    async def finish(self, version: str) -> None:
        """Let the engine load what it has."""
        await self.channel.finish(version)
        self._transport.finished()

    async def shutdown(self) -> None:
        """Close the sockets; a worker that waits at one is told by that."""
        for worker in self._workers:
            worker.close()
        self._workers = []
        # after what is still going on in the thread, which the sockets end
        self._thread.submit(self._close_transport)
        self._thread.shutdown(wait=False)

    def _deliver(self, weights: HostCopy, workers: Sequence[socket.socket], *, stall_seconds: float) -> None:
        try:
            self._transport.deliver(weights, workers, stall_seconds=stall_seconds)
        except (OSError, WeightSyncError) as error:
            # so that no worker waits for what does not come
            for worker in workers:
                worker.close()
            if isinstance(error, OSError):
                raise GroupBrokenError(f"a worker of the engine is gone: {error}") from error
            raise

    def _close_transport(self) -> None:
        try:
            self._transport.close()
        except Exception:
            log.exception("what was lent to an engine could not be taken back")

    def _in_thread(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        future.add_done_callback(read_outcome)
        return future
