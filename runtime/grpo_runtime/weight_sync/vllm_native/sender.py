"""The trainer's half of a transfer engine of vLLM, which drives a transfer by calls that block.

Each engine has a half of its own: one of vLLM's cannot leave a group that has lost a member, so in one group
for all one lost engine would end all others. A half works in a thread; vLLM's verbs that it calls go to the
engine over the control channel. When one fails, or makes no progress, the half is shut down, which ends what
it does where it can, and its thread is left behind.
"""

import asyncio
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from vllm.distributed.weight_transfer.base import (
    ParamMeta,
    TrainerWeightTransferEngine,
    WeightSource,
    WeightTransferUpdatePayload,
)

from grpo_runtime.errors import first_line
from grpo_runtime.process.background import in_thread
from grpo_runtime.weight_sync.deadlines import ANSWER_SECONDS
from grpo_runtime.weight_sync.interface import ControlChannel, Peer, SenderSettings, WeightSyncError
from grpo_runtime.weight_sync.sender import read_outcome
from grpo_runtime.weight_sync.stream.host_copy import HostCopy
from grpo_runtime.weight_sync.stream.manifest import WIRE_DTYPES, WeightManifest, complete_tensors
from grpo_runtime.weight_sync.stream.memory import Device
from grpo_runtime.weight_sync.vllm_native.receiver import InitMessage, UpdateMessage
from grpo_runtime.weight_sync.vllm_native.trainer_half import Half, init_info_of

_T = TypeVar("_T")


class CopySource(WeightSource):
    """A trainer's copy of its weights, as a half reads it: `weights` is the one that is sent now."""

    def __init__(self, manifest: WeightManifest, *, device: Device | None) -> None:
        self.weights: HostCopy | None = None
        self.num_read = 0
        """Tensors, of all transfers."""
        self._manifest = manifest
        self._device = device

    def metadata(self) -> list[ParamMeta]:
        """Metadata of the tensors to send, in order."""
        manifest = self._manifest if self.weights is None else self.weights.manifest
        return [ParamMeta(entry.name, WIRE_DTYPES[entry.dtype], entry.shape) for entry in manifest.tensors]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors, each in memory of its own, on the GPU where the trainer has one."""
        weights = self.weights
        if weights is None:
            raise WeightSyncError("there are no weights to send")
        for name, tensor in complete_tensors(self._buffers(weights), weights.manifest):
            self.num_read += 1
            if self._device is None or tensor.numel():
                yield name, tensor
            else:
                yield name, self._device.empty(0).view(tensor.dtype).reshape(tensor.shape)

    def _buffers(self, weights: HostCopy) -> Iterator[torch.Tensor]:
        """The buffers, on the device and each kept until it has copied what was read of it."""
        for buffer in weights.buffers():
            if self._device is None:
                yield buffer
                continue
            yield buffer if self._device.holds(buffer) else self._on_device(buffer, self._device)
            self._device.synchronize()

    @staticmethod
    def _on_device(buffer: torch.Tensor, device: Device) -> torch.Tensor:
        copied = device.empty(len(buffer))
        return copied.copy_(buffer, non_blocking=True)


class ChannelClient:
    """vLLM's verbs, as a half calls them in its threads: each blocks until the engine has done it.

    The fleet opens and finishes an update for all of its engines at the same time. So `start_weight_update`
    does nothing, and `finish_weight_update` waits until the fleet says so.
    """

    def __init__(self, channel: ControlChannel, *, meeting_seconds: float) -> None:
        """Made in the event loop of the channel."""
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._meeting_seconds = meeting_seconds
        self._connection = secrets.token_urlsafe(24)
        self._message = UpdateMessage()
        self._is_closed = False
        self._version: Future[str] = Future()
        self._calls: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self.refused: asyncio.Future[None] = self._loop.create_future()
        """Fails with what the engine answers, whatever the half makes of it."""
        self.refused.add_done_callback(read_outcome)
        self.delivered: asyncio.Future[None] = self._loop.create_future()
        """Done when the half has nothing more to send."""

    def begin(self, manifest: WeightManifest, *, transfer_seconds: float) -> None:
        """Begin to send these tensors."""
        self._message = UpdateMessage.of(
            manifest, connection=self._connection, transfer_seconds=transfer_seconds
        )
        self._version = Future()
        self.delivered = self._loop.create_future()

    def finish(self, version: str) -> None:
        """Let a half continue that waits to finish."""
        self._version.set_result(version)

    def close(self) -> None:
        """Let every call fail, also those that wait."""
        with self._lock:
            self._is_closed = True
            waiting = [*self._calls, self._version]
        for one in waiting:
            one.cancel()

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Tell the engine how it meets this half."""
        message = InitMessage(
            init_info=init_info, connection=self._connection, meeting_seconds=self._meeting_seconds
        )
        self._wait_for(partial(self._channel.init, message.model_dump(mode="json")))

    def start_weight_update(self) -> None:
        """The fleet has opened it."""

    def update_weights(self, update_info: WeightTransferUpdatePayload) -> None:
        """Let the engine receive and load a part of the update, which may be all of it."""
        message = self._message.model_copy(update={"update_info": update_info})
        self._wait_for(partial(self._channel.update, message.model_dump(mode="json", exclude={"abort"})))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Wait until the fleet finishes the update, and let the engine do so. The version is the fleet's."""
        self._loop.call_soon_threadsafe(self._has_delivered)
        self._wait_for(partial(self._channel.finish, self._version.result()))

    def _has_delivered(self) -> None:
        if not self.delivered.done():
            self.delivered.set_result(None)

    def _wait_for(self, call: Callable[[], Awaitable[None]]) -> None:
        with self._lock:
            if self._is_closed:
                raise WeightSyncError("the trainer has given this connection up")
            future = asyncio.run_coroutine_threadsafe(self._answer(call), self._loop)
            self._calls.add(future)
        try:
            future.result()
        finally:
            self._calls.discard(future)

    async def _answer(self, call: Callable[[], Awaitable[None]]) -> None:
        try:
            await call()
        except Exception as error:
            if not self.refused.done():
                self.refused.set_exception(error)
            raise


class VllmNativeConnection:
    """The trainer's side of the connection to one engine; see `Connection`."""

    def __init__(
        self,
        peer: Peer,
        settings: SenderSettings,
        *,
        half: Half,
        manifest: Callable[[], WeightManifest],
        device: Device | None,
    ) -> None:
        """`manifest` gives what the newest weights are."""
        self.channel = peer.channel
        self._peer = peer
        self._deadlines = settings.deadlines
        self._half_class = half
        self._manifest = manifest
        self._device = device
        self._client: ChannelClient | None = None
        self._half: TrainerWeightTransferEngine[Any] | None = None
        self._source: CopySource | None = None
        self._sending: asyncio.Future[None] | None = None

    async def init(self) -> None:
        """Meet all workers of the engine. A meeting that fails costs the engine a restart, so none is given
        less time because an earlier one was quick: the deadlines do not learn from it."""
        self._leave()
        limit = self._deadlines.meeting_seconds()
        client = self._client = ChannelClient(self.channel, meeting_seconds=limit)
        source = self._source = CopySource(self._manifest(), device=self._device)
        with self._leaving_what_breaks():
            meeting = self._in_thread(partial(self._meet, client, source))
            waiting: set[asyncio.Future[Any]] = {meeting, client.refused}
            done, _ = await asyncio.wait(waiting, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise WeightSyncError(f"the engine and the trainer have not met within {limit:g} s")
            if client.refused in done:
                client.refused.result()
            self._half = meeting.result()

    async def update(self, weights: HostCopy) -> None:
        """Let the half send the copy while it is being made; the engine answers when it has loaded all."""
        half, client, source = self._half, self._client, self._source
        if half is None or client is None or source is None:
            raise WeightSyncError("the engine is not connected: call init first")
        first = partial(weights.wait_for_first_buffer, timeout_seconds=self._deadlines.timeout_seconds)
        await asyncio.to_thread(first)
        with self._leaving_what_breaks():
            if self._sending is not None and not self._sending.done():
                raise WeightSyncError("the update before was not finished")
            # where a tensor is late, the engine still has a moment to say why
            patience = self._deadlines.stall_seconds() + ANSWER_SECONDS
            start = time.monotonic()
            # the whole deadline: the engine ends when it is over, and how many others share the way is not
            # known here
            client.begin(weights.manifest, transfer_seconds=self._deadlines.timeout_seconds)
            source.weights = weights
            self._sending = sending = self._in_thread(partial(self._send, half, source))
            waiting: set[asyncio.Future[Any]] = {sending, client.refused, client.delivered}
            done = set[asyncio.Future[Any]]()
            while not done:
                num_before = source.num_read
                done, _ = await asyncio.wait(waiting, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if not done and source.num_read == num_before:
                    raise WeightSyncError(f"the transfer has made no progress for {patience:g} s")
            for one in (client.refused, sending):
                if one in done:
                    one.result()
            self._deadlines.note("transfer", time.monotonic() - start)

    async def finish(self, version: str) -> None:
        """Let the half finish the update, if it waits for that, and the engine put its model together."""
        client, sending = self._client, self._sending
        if client is None or sending is None or sending.done():
            await self.channel.finish(version)
            return
        with self._leaving_what_breaks():
            client.finish(version)
            await asyncio.wait({sending, client.refused}, return_when=asyncio.FIRST_COMPLETED)
            if client.refused.done():
                client.refused.result()
            sending.result()

    async def shutdown(self) -> None:
        """Leave the engine. A thread that still works ends once it can."""
        self._leave()

    def _meet(self, client: ChannelClient, source: CopySource) -> TrainerWeightTransferEngine[Any]:
        info = init_info_of(
            self._half_class,
            size=1 + self._peer.num_workers,
            host=self._peer.host,
            manifest=self._manifest(),
        )
        half = self._half_class.trainer_init(info, client=client, source=source)
        if client is not self._client:
            half.shutdown()
            raise WeightSyncError("it was aborted before all members were there")
        return half

    @staticmethod
    def _send(half: TrainerWeightTransferEngine[Any], source: CopySource) -> None:
        try:
            half.send_weights()
        finally:
            # the memory of the copy is used again
            source.weights = None

    @contextmanager
    def _leaving_what_breaks(self) -> Iterator[None]:
        """Leave the engine when the block fails: the connection is of no more use. What a half raises of its
        own becomes a WeightSyncError."""
        try:
            yield
        except (WeightSyncError, asyncio.CancelledError):
            self._leave()
            raise
        except Exception as error:
            self._leave()
            name = self._half_class.__name__
            raise WeightSyncError(f"the trainer's half {name} of vLLM failed: {first_line(error)}") from error

    def _leave(self) -> None:
        client, self._client = self._client, None
        half, self._half = self._half, None
        self._source, self._sending = None, None
        if client is not None:
            client.close()
        if half is not None:
            # it may block, and ends what its other thread does
            in_thread(half.shutdown, name="weight-sender-shutdown")

    def _in_thread(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        """Run `work` in a thread that is left behind when it does not end."""

        def on_device() -> _T:
            with nullcontext() if self._device is None else self._device.use():
                return work()

        future = asyncio.wrap_future(in_thread(on_device, name="weight-sender"))
        future.add_done_callback(read_outcome)
        return future
