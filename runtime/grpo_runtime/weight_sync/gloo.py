"""Weights over TCP by gloo: a group of two for each engine, of which the trainer's rank 0 is one.

Gloo speaks no pickle, needs no GPU and no default process group. The trainer hosts the TCPStore at which the
two meet; its address and a random key travel on the authenticated control channel.
"""

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Annotated, Any, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch.distributed import PrefixStore, ProcessGroupGloo, Store, TCPStore

from grpo_runtime.weight_sync.address import local_address_towards
from grpo_runtime.weight_sync.interface import Info, Peer, WeightSyncError
from grpo_runtime.weight_sync.packing import PackedWeights, WeightManifest, as_memory
from grpo_runtime.weight_sync.staging import Digest

SENDER, RECEIVER = 0, 1
MAX_MEETING_SECONDS = 60.0
"""Both ends begin to meet at the same moment, so that neither waits for as long as a transfer may take."""
_T = TypeVar("_T")


class GlooInitInfo(BaseModel):
    """Where to meet. `timeout_seconds` bounds the wait for each buffer, and the meeting too where shorter."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: Annotated[str, Field(min_length=1, max_length=253)]
    port: Annotated[int, Field(ge=1, le=65535)]
    key: Annotated[str, Field(min_length=16, max_length=128)]
    timeout_seconds: Annotated[float, Field(gt=0)]

    @property
    def meeting_timeout(self) -> timedelta:
        """How long either end waits for the other to appear."""
        return timedelta(seconds=min(self.timeout_seconds, MAX_MEETING_SECONDS))


class GlooConnection:
    """The trainer's end of the group with one engine; see `Connection`."""

    def __init__(self, peer: Peer, *, timeout_seconds: float) -> None:
        self.channel = peer.channel
        self._host = peer.host
        self._timeout_seconds = timeout_seconds
        self._group: ProcessGroupGloo | None = None
        # gloo blocks its caller: one thread for each engine, so that engines never wait for each other
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gloo-sender")

    async def init(self) -> None:
        """Host the meeting, tell the engine where it is, and wait until both are there."""
        address = local_address_towards(self._host)
        store = await self._in_thread(lambda: _host_store(address, self._timeout_seconds))
        info = GlooInitInfo(
            address=address,
            port=store.port,
            key=secrets.token_urlsafe(24),
            timeout_seconds=self._timeout_seconds,
        )
        meeting = self._in_thread(lambda: _join(store, info, rank=SENDER, own_address=address))
        self._group = await _both(self.channel.init(info.model_dump()), meeting)

    async def update(self, weights: PackedWeights) -> None:
        """Stream the buffers while the engine receives and checks them."""
        if self._group is None:
            raise WeightSyncError("the gloo sender is not connected: call init first")
        group = self._group
        sending = self._in_thread(lambda: self._send(group, weights))
        await _both(self.channel.update({"manifest": weights.manifest.model_dump(mode="json")}), sending)

    async def finish(self, version: str) -> None:
        """Let the engine load what it has staged."""
        await self.channel.finish(version)

    async def shutdown(self) -> None:
        """Let go of the group. Gloo closes it with its last reference: at once, or when the thread that
        still sends has reached its deadline. A receiver then sees the connection close."""
        self._group = None
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _send(self, group: ProcessGroupGloo, weights: PackedWeights) -> None:
        timeout = timedelta(seconds=self._timeout_seconds)
        for buffer in weights.buffers:
            try:
                group.send([buffer], RECEIVER, 0).wait(timeout)  # type: ignore[attr-defined] # not in stubs
            except RuntimeError as error:
                raise WeightSyncError(f"the engine stopped receiving: {_first_line(error)}") from error

    def _in_thread(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, work)


class GlooReceiver:
    """The engine's end of the group; see `ReceiverTransport`."""

    def __init__(self) -> None:
        self._group: ProcessGroupGloo | None = None
        self._timeout = timedelta(0)

    def init(self, info: Info) -> None:
        """Meet the sender that wrote `info`."""
        self.shutdown()
        try:
            parsed = GlooInitInfo.model_validate(dict(info))
        except ValidationError as error:
            raise WeightSyncError(f"gloo init not understood: {error}") from error
        self._timeout = timedelta(seconds=parsed.timeout_seconds)
        try:
            store = TCPStore(
                parsed.address,
                parsed.port,
                is_master=False,
                timeout=parsed.meeting_timeout,
                wait_for_workers=False,
            )
        except RuntimeError as error:
            raise WeightSyncError(
                f"no trainer listens at {parsed.address}:{parsed.port}: {_first_line(error)}"
            ) from error
        own_address = local_address_towards(parsed.address)
        self._group = _join(store, parsed, rank=RECEIVER, own_address=own_address)

    def receive(self, flat: torch.Tensor, *, manifest: WeightManifest, digest: Digest) -> None:
        """Fill `flat` buffer by buffer."""
        # a reference of our own: the process ends when a group is destroyed while it receives
        group = self._group
        if group is None:
            raise WeightSyncError("the gloo receiver is not connected: the sender must init first")
        for buffer in flat.split(manifest.buffer_bytes):
            try:
                work = group.recv([buffer], SENDER, 0)  # type: ignore[attr-defined] # not in stubs
                work.wait(self._timeout)
            except RuntimeError as error:
                # a group is not usable after an error: the next sender brings its own
                self.shutdown()
                raise WeightSyncError(f"the trainer stopped sending: {_first_line(error)}") from error
            digest.update(as_memory(buffer))

    def shutdown(self) -> None:
        """Let go of the group, if there is one, which closes it."""
        self._group = None


def _host_store(address: str, timeout_seconds: float) -> TCPStore:
    try:
        return TCPStore(
            address, 0, is_master=True, timeout=timedelta(seconds=timeout_seconds), wait_for_workers=False
        )
    except RuntimeError as error:
        raise WeightSyncError(f"no meeting can be hosted at {address}: {_first_line(error)}") from error


def _join(store: Store, info: GlooInitInfo, *, rank: int, own_address: str) -> ProcessGroupGloo:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined] # not in stubs
    # by address: a pod's or a laptop's host name may resolve to nothing that the other side can reach
    options._devices = [ProcessGroupGloo.create_device(hostname=own_address)]
    options._timeout = info.meeting_timeout
    try:
        return ProcessGroupGloo(PrefixStore(info.key, store), rank, 2, options)
    except RuntimeError as error:
        raise WeightSyncError(
            f"gloo found no peer within {info.meeting_timeout.total_seconds():g} s: {_first_line(error)}"
        ) from error


async def _both(control: Coroutine[Any, Any, None], local: asyncio.Future[_T]) -> _T:
    """What `local` gives, once the engine has confirmed too. The first failure ends the wait for both.

    A thread behind `local` cannot be cancelled: it ends at its own deadline, or when the group is closed.
    """
    confirmed = asyncio.ensure_future(control)
    try:
        both: set[asyncio.Future[Any]] = {confirmed, local}
        await asyncio.wait(both, return_when=asyncio.FIRST_EXCEPTION)
        # the engine's sentence says more than a closed connection does
        if confirmed.done():
            confirmed.result()
        result = local.result() if local.done() else await local
        await confirmed
        return result
    finally:
        confirmed.cancel()
        local.add_done_callback(_forget)


def _forget(future: asyncio.Future[_T]) -> None:
    """Read the outcome of a thread that is no longer waited for: asyncio reports errors that are never
    read."""
    if not future.cancelled():
        future.exception()


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:300] if str(error) else type(error).__name__
