"""The ranks of a run: how they meet, agree, and get a batch. Tensors only, never pickled objects."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from grpo_runtime.trainer.failure import PeerLostError
from grpo_runtime.trainer.stop import StopRequest, StopRequestedError

T = TypeVar("T")

MEET_TIMEOUT = timedelta(minutes=15)
"""For the ranks of all pods to appear."""
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""For one collective operation; rank 0 may be writing a large checkpoint meanwhile."""
CHANNEL_TIMEOUT = timedelta(days=365)
"""For one message on a channel: who waits for a command waits as long as training takes. That a rank is gone
is noticed by its closed connection, and that it hangs by the roll calls."""
ROLL_CALL_SECONDS = 1.0
"""How often rank 0 meets the others while it waits for engines or rewards."""


@dataclass(frozen=True)
class _RollCall:
    """What all ranks know after a roll call. The same on every rank, so that none acts alone."""

    is_batch_ready: bool
    is_stop_requested: bool
    is_training_done: bool


class Ranks:
    """This process's place among the training ranks. Rank 0 conducts, the others follow."""

    def __init__(self, *, rank: int, world_size: int, stop: StopRequest) -> None:
        self.rank = rank
        self.world_size = world_size
        self._stop = stop

    @classmethod
    def meet(
        cls, *, rank: int, world_size: int, address: str, port: int, backend: str, stop: StopRequest
    ) -> "Ranks":
        """Wait for all ranks at the static rendezvous on rank 0's pod. `backend` as in torch.distributed."""
        with peer_errors():
            store = dist.TCPStore(
                address, port, world_size, is_master=rank == 0, timeout=MEET_TIMEOUT, wait_for_workers=True
            )
            dist.init_process_group(
                backend, store=store, rank=rank, world_size=world_size, timeout=COLLECTIVE_TIMEOUT
            )
        return cls(rank=rank, world_size=world_size, stop=stop)

    def part(self, advantages: torch.Tensor) -> slice:
        """Which sequences of a batch are this rank's: shares are contiguous and differ by at most one."""
        num_sequences = len(advantages)
        bounds = [num_sequences * rank // self.world_size for rank in (self.rank, self.rank + 1)]
        return slice(*bounds)

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Rank 0's `tensor` on every rank, in place."""
        with peer_errors():
            dist.broadcast(tensor, src=0)
        return tensor

    def announce_batch(self) -> None:
        """Rank 0: the others may come for a batch. Raises StopRequestedError when any was asked to stop."""
        if self._roll_call(is_batch_ready=True).is_stop_requested:
            raise StopRequestedError

    def announce_end(self) -> None:
        """Rank 0: every step is done."""
        self._roll_call(is_training_done=True)

    def await_announcement(self, *, on_tick: Callable[[], None]) -> bool:
        """The others: True when a batch comes, False when training is done. Calls `on_tick` again and again.

        Raises StopRequestedError when a rank was asked to stop.
        """
        while True:
            call = self._roll_call()
            on_tick()
            if call.is_training_done:
                return False
            if call.is_stop_requested:
                raise StopRequestedError
            if call.is_batch_ready:
                return True

    def _roll_call(self, *, is_batch_ready: bool = False, is_training_done: bool = False) -> _RollCall:
        """Meet all ranks; a flag that one rank raises is seen by all. Blocks until every rank is here."""
        flags = torch.tensor([is_batch_ready, self._stop.is_set, is_training_done], dtype=torch.int32)
        with peer_errors():
            dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        return _RollCall(*(bool(flag) for flag in flags.tolist()))

    async def attend(self, work: Awaitable[T], *, on_tick: Callable[[], None]) -> T:
        """Rank 0: wait for `work` while meeting the other ranks, and call `on_tick` each time.

        Raises StopRequestedError, after cancelling the work, as soon as any rank was asked to stop.
        """
        task = asyncio.ensure_future(work)
        try:
            while True:
                done, _ = await asyncio.wait({task}, timeout=ROLL_CALL_SECONDS)
                if done:
                    return task.result()
                on_tick()
                if self._roll_call().is_stop_requested:
                    raise StopRequestedError
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({task})

    def open_channel(self) -> "RankChannel":
        """A way to talk that roll calls and training do not disturb. All ranks open it at the same time."""
        with peer_errors():
            group = dist.new_group(backend="gloo", timeout=CHANNEL_TIMEOUT)
        return RankChannel(rank=self.rank, world_size=self.world_size, group=group)

    def leave(self) -> None:
        """Wait for the other ranks. The group is not destroyed: see `rank._end`."""
        with peer_errors():
            dist.barrier()


class RankChannel:
    """Tensors between rank 0 and the others, beside the collective operations of training."""

    def __init__(self, *, rank: int, world_size: int, group: dist.ProcessGroup) -> None:
        self.rank = rank
        self.world_size = world_size
        self._group = group

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Rank 0's `tensor` on every rank, in place."""
        with peer_errors():
            dist.broadcast(tensor, src=0, group=self._group)
        return tensor

    def send(self, tensor: torch.Tensor) -> None:
        """Give `tensor` to rank 0, which waits for it in `receive`."""
        with peer_errors():
            dist.send(tensor, dst=0, group=self._group)

    def receive(self, tensor: torch.Tensor, *, rank: int) -> torch.Tensor:
        """Rank 0: what `rank` sends, in place."""
        with peer_errors():
            dist.recv(tensor, src=rank, group=self._group)
        return tensor


@contextlib.contextmanager
def peer_errors() -> Iterator[None]:
    """Turn what gloo and the store raise when a peer is gone into PeerLostError."""
    try:
        yield
    except dist.DistError as error:
        raise PeerLostError(f"another rank is gone or does not answer: {_first_line(error)}") from error
    except RuntimeError as error:
        # gloo has no exception class of its own
        if "gloo" not in str(error).lower():
            raise
        raise PeerLostError(f"another rank is gone or does not answer: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
