"""The ranks of a run: how they find each other, agree on what comes next, stop together, and get tensors.

Tensors only, never pickled objects.
"""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from types import FrameType
from typing import TypeVar

import torch
import torch.distributed as dist

from grpo_runtime.errors import AddressInUseError, PeerLostError, first_line
from grpo_runtime.report.position import OwnPosition

T = TypeVar("T")
MEET_TIMEOUT = timedelta(minutes=15)
"""How long the ranks of all pods may take to appear."""
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""How long one collective operation may take. What takes longer is waited for by meeting again and again."""
CHANNEL_TIMEOUT = timedelta(days=365)
"""How long one message on a channel may take: a rank waits for the next command as long as training takes.
That another rank is gone is noticed by its closed connection, and that it hangs where the ranks meet."""
MEET_SECONDS = 1.0
"""How often rank 0 meets the others while it waits for engines or rewards."""


class Command(IntEnum):
    """What all ranks do now. Numbers add up where ranks meet: only rank 0 sends another than NONE, which is
    0."""

    NONE = 0
    """Nothing: rank 0 waits for engines or rewards."""
    PROBE = 1
    """Compute the probe's logprobs under the present weights."""
    SYNC = 2
    """Hand the weights to the engines."""
    TRAIN = 3
    """Train on the batch that rank 0 sends."""
    SAVE = 4
    """Copy what a checkpoint holds, and begin to write it."""
    EXPORT = 5
    """Write the trained policy."""
    DONE = 6
    """Every step is done: end."""
    STOP = 7
    """A rank was asked to stop, and what had to be saved is saved: end."""
    DIGEST = 8
    """Digest the weights that were trained."""
    READ = 9
    """Rank 0 has read what the run begins with: continue."""


STEP_COMMANDS = frozenset({Command.PROBE, Command.SYNC, Command.TRAIN})
"""Commands of a step, which are void when a rank was asked to stop."""


class StopRequestedError(Exception):
    """A rank was asked to stop. Control flow, not a failure: the run stands at its last step boundary."""


class StopRequest:
    """Set by SIGTERM and SIGINT once `listen` was called."""

    def __init__(self) -> None:
        self.is_set = False

    def listen(self) -> None:
        """Take over SIGTERM and SIGINT of this process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._remember)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.is_set = True


@dataclass(frozen=True)
class RankMeeting:
    """What all ranks know after they have met. The same on every rank, so that none acts alone."""

    command: Command
    """What rank 0 announces."""
    is_stop_requested: bool
    """Whether any rank was asked to stop."""


class Ranks:
    """The training ranks, as this one sees them. Rank 0 announces what comes next, the others execute it."""

    def __init__(
        self, *, rank: int, world_size: int, stop: StopRequest, position: OwnPosition | None = None
    ) -> None:
        """`position` reports what this rank does."""
        self.position = position or OwnPosition()
        self.rank = rank
        self.world_size = world_size
        self.num_finished: tuple[int, ...] = (0,) * world_size
        """By rank: how many samples of the running generation its engine had finished at the last meeting."""
        self.is_starting_again: tuple[bool, ...] = (False,) * world_size
        """By rank: whether its engine was lost and was being started again at the last meeting."""
        self._stop = stop
        self._count_finished: Callable[[], int] = int
        self._is_starting_again: Callable[[], bool] = bool

    @classmethod
    def meet(
        cls,
        *,
        rank: int,
        world_size: int,
        address: str,
        port: int,
        backend: str,
        stop: StopRequest,
        timeout: timedelta = COLLECTIVE_TIMEOUT,
        position: OwnPosition | None = None,
    ) -> "Ranks":
        """Wait for all ranks at the static rendezvous on rank 0's pod. `backend` as in torch.distributed;
        one collective operation may take as long as `timeout`. A rank that is alone may have port 0, any.

        Raises AddressInUseError on rank 0 when another process listens there.
        """
        with peer_errors():
            store = _store(address, port, world_size=world_size, is_master=rank == 0)
            dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
        return cls(rank=rank, world_size=world_size, stop=stop, position=position)

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Rank 0's `tensor` on every rank, in place."""
        with peer_errors():
            dist.broadcast(tensor, src=0)
        return tensor

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' `tensor` on every rank, in place."""
        with peer_errors():
            dist.all_reduce(tensor)
        return tensor

    def all_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """[N] of all ranks, one after the other, from [n] of each; n may differ. All ranks get the same."""
        counts = torch.zeros(self.world_size, dtype=torch.int64, device=tensor.device)
        counts[self.rank] = len(tensor)
        ends = self.sum(counts).cumsum(0).tolist()
        gathered = tensor.new_zeros(ends[-1])
        gathered[ends[self.rank] - len(tensor) : ends[self.rank]] = tensor
        # a number and zeros: the sum is exact
        return self.sum(gathered)

    def announce(self, command: Command) -> None:
        """Rank 0: all ranks do this now.

        Raises StopRequestedError instead, on all ranks at once, when any was asked to stop and the command is
        one of a step.
        """
        met = self._meet_ranks(command)
        if met.is_stop_requested and command in STEP_COMMANDS:
            raise StopRequestedError

    def next_command(self, *, on_tick: Callable[[], None]) -> Command:
        """The other ranks: what rank 0 announces next. Calls `on_tick` each time the ranks have met."""
        while True:
            met = self._meet_ranks(Command.NONE)
            on_tick()
            is_void = met.is_stop_requested and met.command in STEP_COMMANDS
            if met.command is not Command.NONE and not is_void:
                return met.command

    def report_engine_state(
        self, *, num_finished: Callable[[], int], is_starting_again: Callable[[], bool] = bool
    ) -> None:
        """Report to the other ranks at every meeting from now on how many samples its engine has finished,
        and whether it was lost and is started again."""
        self._count_finished = num_finished
        self._is_starting_again = is_starting_again

    def _meet_ranks(self, command: Command) -> RankMeeting:
        """Meet all ranks; what one of them contributes reaches all of them. Blocks until every rank is
        here."""
        finished, starting = [0] * self.world_size, [False] * self.world_size
        finished[self.rank] = self._count_finished()
        starting[self.rank] = self._is_starting_again()
        # summed up: only rank 0 gives a command, and each rank has places of its own for its engine
        flags = torch.tensor([command, self._stop.is_set, *finished, *starting], dtype=torch.int64)
        self.position.at("waits for the other ranks")
        with peer_errors():
            dist.all_reduce(flags, op=dist.ReduceOp.SUM)
        self.position.at("works between two meetings of the ranks")
        command_number, is_stop_requested, *of_engines = flags.tolist()
        self.num_finished = tuple(of_engines[: self.world_size])
        self.is_starting_again = tuple(map(bool, of_engines[self.world_size :]))
        return RankMeeting(Command(command_number), is_stop_requested=bool(is_stop_requested))

    async def attend(
        self, work: Awaitable[T], *, on_tick: Callable[[], None], ends_on_stop: bool = True
    ) -> T:
        """Rank 0: wait for `work` while meeting the other ranks, and call `on_tick` each time.

        Raises StopRequestedError, after cancelling the work, as soon as any rank was asked to stop, unless
        the work is what comes before an end.
        """
        task = asyncio.ensure_future(work)
        try:
            while True:
                self.position.at("waits for engines, rewards or a volume")
                done, _ = await asyncio.wait({task}, timeout=MEET_SECONDS)
                if done:
                    return task.result()
                on_tick()
                if self._meet_ranks(Command.NONE).is_stop_requested and ends_on_stop:
                    raise StopRequestedError
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({task})

    def open_channel(self) -> "RankChannel":
        """A group of its own, beside the one that training uses. All ranks open it at the same time."""
        with peer_errors():
            group = dist.new_group(backend="gloo", timeout=CHANNEL_TIMEOUT)
        return RankChannel(rank=self.rank, world_size=self.world_size, group=group)

    def leave(self) -> None:
        """Wait for the other ranks. The group is not destroyed: the process ends with it, in `rank`."""
        with peer_errors():
            dist.barrier()


def _store(address: str, port: int, *, world_size: int, is_master: bool) -> dist.TCPStore:
    try:
        return dist.TCPStore(
            address, port, world_size, is_master=is_master, timeout=MEET_TIMEOUT, wait_for_workers=True
        )
    except dist.DistNetworkError as error:
        # torch gives no number
        if "EADDRINUSE" not in str(error):
            raise
        raise AddressInUseError(
            f"port {port}, at which the training processes meet, is in use by another process of this "
            "network: on the network of a node (hostNetwork) only one trainer pod can be there"
        ) from error


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
        raise PeerLostError(f"another rank is gone or does not answer: {first_line(error)}") from error
    except RuntimeError as error:
        # gloo has no exception class of its own
        if "gloo" not in str(error).lower():
            raise
        raise PeerLostError(f"another rank is gone or does not answer: {first_line(error)}") from error
