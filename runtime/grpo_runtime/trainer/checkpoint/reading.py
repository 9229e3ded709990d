"""How rank 0 reads what a run begins with: how far it is, and how the other ranks wait for it."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import torch

from grpo_runtime.process.background import in_thread
from grpo_runtime.process.procfs import GrowingMemory
from grpo_runtime.report.progress import StartingReport
from grpo_runtime.trainer.distributed import Command, Ranks, StopRequestedError
from grpo_runtime.trainer.strategy.interface import TrainingState

T = TypeVar("T")
_STEP_PERCENT = 10


class ReadProgress:
    """What is being read and how much of it has been read; by default nothing. One thread reads, another
    one reports it."""

    def __init__(self) -> None:
        self.num_bytes = 0
        """Read so far, of everything. It stays the same while a volume does not answer."""
        self._current = ("", 0, 0)
        """What, the bytes that were read before it, and those that it has. One value, as threads share it."""

    def begin(self, what: str, *, total_bytes: int = 0) -> None:
        """Begin to read `what`, which has so many bytes; 0 where that is not known."""
        self._current = (what, self.num_bytes, total_bytes)

    def add(self, num_bytes: int) -> None:
        """So many bytes more have been read."""
        self.num_bytes += num_bytes

    @property
    def message(self) -> str:
        """What is read, with its size and, in steps of ten percent, how much of it has been: a status is
        written for each other message. Empty before anything is read."""
        what, begun_at, total_bytes = self._current
        if not total_bytes:
            return what
        percent = min(100 * (self.num_bytes - begun_at) // total_bytes, 100)
        return f"{what}: {percent // _STEP_PERCENT * _STEP_PERCENT}% of {total_bytes / 1e9:.1f} GB"


class ReadingRank:
    """Reads on rank 0, and reports how far it is in the progress of `run_dir`. Every rank has one."""

    def __init__(self, ranks: Ranks, *, run_dir: Path) -> None:
        self.reading = ReadProgress()
        self._ranks = ranks
        self._report = StartingReport(run_dir) if ranks.rank == 0 else None

    def read(self, work: Callable[[], T], *, what: str = "") -> T | None:
        """What `work` returns on rank 0, which does it in a thread, and None on the other ranks. All ranks
        call this at the same time, and meet until it is done: in one collective operation they would wait no
        longer than COLLECTIVE_TIMEOUT, and a large checkpoint takes longer.

        `work` reports to `reading` what it reads. Where it cannot, that is `what`, and it is seen to read by
        the memory that it fills. Raises what `work` raises, and StopRequestedError, on all ranks at once,
        when any was asked to stop.
        """
        if self._ranks.rank != 0:
            if self._ranks.next_command(on_tick=_nothing) is Command.STOP:
                raise StopRequestedError
            return None
        memory = GrowingMemory()
        if what:
            self.reading.begin(what)

        def on_tick() -> None:
            if what:
                self.reading.add(memory.grown())
            self._tell()

        async def attended() -> T:
            thread = in_thread(work, name="reading")
            return await self._ranks.attend(asyncio.wrap_future(thread), on_tick=on_tick)

        try:
            found = asyncio.run(attended())
        except StopRequestedError:
            self._ranks.announce(Command.STOP)
            raise
        self._ranks.announce(Command.READ)
        return found

    def counted(self, state: TrainingState | None, *, what: str) -> TrainingState | None:
        """The same tensors, of which each that is taken is reported as read: those of a file that is mapped
        into memory are read only then."""
        if state is None:
            return None
        kinds = (state.model, state.optimizer, state.reference)
        self.reading.begin(what, total_bytes=sum(tensor.nbytes for kind in kinds for tensor in kind.values()))
        return TrainingState(*(_CountedTensors(kind, on_bytes=self._count) for kind in kinds))

    def _count(self, num_bytes: int) -> None:
        self.reading.add(num_bytes)
        self._tell()

    def _tell(self) -> None:
        if self._report is not None:
            self._report.report_bytes(self.reading.message, num_bytes=self.reading.num_bytes)


class _CountedTensors(Mapping[str, torch.Tensor]):
    """Tensors by name; `on_bytes` is called for each that is taken."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], *, on_bytes: Callable[[int], None]) -> None:
        self._tensors = tensors
        self._on_bytes = on_bytes

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = self._tensors[name]
        self._on_bytes(tensor.nbytes)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _nothing() -> None:
    """Does nothing: what a rank that waits for rank 0 does each time the ranks have met."""
