"""Where each training process of a pod is: it writes that down as it goes, and its supervisor reads it.

It is memory that both map, because a process that is blocked cannot be asked. Needs no torch.
"""

import faulthandler
import logging
import mmap
import os
import signal
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

STACKS_SIGNAL = signal.SIGUSR1
"""A process that reports its position prints the stacks of its threads when it gets this signal, whatever it
waits in. Others would be ended by it."""
_NAME = "position-"
_NUMBERS = struct.Struct("<QQQd")
_RECORD_BYTES = 256
_MAX_TEXT_BYTES = _RECORD_BYTES - _NUMBERS.size - 2


@dataclass(frozen=True)
class Position:
    """Where a training process was when it last wrote that down."""

    pid: int
    num_moves: int
    """How often it has written so far."""
    num_work: int
    """How many pieces of work it has finished so far, such as micro-batches: these are signs of life of the
    run, a meeting with other processes is none."""
    longest_seconds: float
    """The longest time so far that it did what it does now before it wrote again; 0 if it does that for the
    first time."""
    doing: str
    """What it does, as a sentence about it without its subject."""


class OwnPosition:
    """The position of this process. Without a file nobody reads it."""

    @classmethod
    def told_in(cls, run_dir: Path, *, local_rank: int) -> "OwnPosition":
        """One that the supervisor reads, and from here on this process prints its stacks on request. Where it
        cannot be written nobody reads it."""
        faulthandler.register(STACKS_SIGNAL, all_threads=True)
        try:
            return cls(position_path(run_dir, local_rank))
        except OSError as error:
            logger.warning("the supervisor will not know where this process is: %s", error)
            return cls()

    def __init__(self, path: Path | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._memory = mmap.mmap(-1, _RECORD_BYTES) if path is None else _mapped(path)
        self._clock = clock
        self._longest: dict[str, float] = {}
        self._what = ""
        self._since = clock()
        self._num_moves = 0
        self._num_work = 0

    def at(self, what: str, detail: str = "", *, work: int = 0) -> None:
        """This process does `what` from now on. How long that takes is remembered by `what`, and `detail`
        says more of it. `work` pieces of work are done since the call before."""
        now = self._clock()
        if self._num_moves:
            self._longest[self._what] = max(self._longest.get(self._what, 0.0), now - self._since)
        self._what, self._since = what, now
        self._num_moves += 1
        self._num_work += work
        text = f"{what}, {detail}" if detail else what
        encoded = text.encode()[:_MAX_TEXT_BYTES]
        numbers = (os.getpid(), self._num_moves, self._num_work, self._longest.get(what, 0.0))
        # with one copy, so that a reader hardly ever sees half of it
        record = _NUMBERS.pack(*numbers) + len(encoded).to_bytes(2, "little") + encoded
        self._memory[: len(record)] = record

    def moved(self, *, work: int = 0) -> None:
        """It continues with what it does."""
        self.at(self._what, work=work)


def position_path(run_dir: Path, local_rank: int) -> Path:
    """The file of a training process."""
    return run_dir / f"{_NAME}{local_rank}"


def read_positions(run_dir: Path) -> dict[int, Position]:
    """By local rank, of the processes that have written one."""
    paths = sorted(run_dir.glob(f"{_NAME}*"), key=_local_rank)
    found = {_local_rank(path): _read(path) for path in paths}
    return {rank: position for rank, position in found.items() if position is not None}


def _local_rank(path: Path) -> int:
    return int(path.name.removeprefix(_NAME))


def _read(path: Path) -> Position | None:
    record = path.read_bytes()
    if len(record) < _RECORD_BYTES:
        return None  # it is being made
    pid, num_moves, num_work, longest = _NUMBERS.unpack_from(record)
    start = _NUMBERS.size + 2
    length = int.from_bytes(record[_NUMBERS.size : start], "little")
    doing = record[start : start + length].decode(errors="replace")
    return Position(pid, num_moves, num_work, longest, doing) if num_moves else None


def _mapped(path: Path) -> mmap.mmap:
    with path.open("w+b") as file:
        # written, not only made longer: memory that a full volume has no room for would end the process
        file.write(bytes(_RECORD_BYTES))
        file.flush()
        return mmap.mmap(file.fileno(), _RECORD_BYTES)
