"""The ranks of one trainer pod as child processes of process 1. No torch here."""

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_runtime.parent_death import adopt_orphans
from grpo_runtime.trainer.nursery import find_ranks


@dataclass(frozen=True)
class RankDeath:
    """How a rank ended: `exit_code` as a shell would show it, 128 + n after signal n.

    `is_ours` says that the supervisor itself killed it.
    """

    local_rank: int
    exit_code: int
    signal_number: int | None = None
    is_ours: bool = False


class Gang:
    """Starts the ranks by a nursery, reaps every child of this process, and can stop what still runs."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], *, run_dir: Path) -> None:
        """Start `command`, a process that forks the ranks: see nursery.fork_ranks. They come to this one."""
        adopt_orphans()
        # the signals that the supervisor waits for are blocked in it, which children would inherit
        self._nursery: int | None = os.posix_spawnp(command[0], command, environment, setsigmask=())
        self._ranks: dict[int, int] = {}
        self._run_dir = run_dir
        self._sent: list[signal.Signals] = []

    @property
    def is_alive(self) -> bool:
        """Whether any rank still runs, or is to come."""
        return self._nursery is not None or bool(self._ranks)

    def reap(self) -> list[RankDeath]:
        """Collect the children that have ended, and return those that were ranks, in order.

        A nursery that fails counts as rank 0. Orphans that were no ranks are collected and forgotten.
        """
        deaths = []
        ended = dict(ended_children())
        if self._nursery is not None and (status := ended.pop(self._nursery, None)) is not None:
            self._nursery = None
            self._adopt(ended=set(ended))
            if not self._ranks:
                deaths.append(self._death(0, status))
        for pid, status in ended.items():
            if (local_rank := self._ranks.pop(pid, None)) is not None:
                deaths.append(self._death(local_rank, status))
        return deaths

    def send(self, signal_number: signal.Signals) -> None:
        """Send a signal to every rank that still runs or is to come."""
        self._sent.append(signal_number)
        for pid in [*self._ranks, *([self._nursery] if self._nursery is not None else [])]:
            os.kill(pid, signal_number)

    def kill(self) -> None:
        """End every rank that still runs, at once; their deaths are then ours."""
        self.send(signal.SIGKILL)

    def _adopt(self, *, ended: set[int]) -> None:
        """Know the ranks, and tell those that have not ended what the nursery could not pass on."""
        self._ranks = {pid: local_rank for local_rank, pid in enumerate(find_ranks(self._run_dir))}
        for pid in self._ranks.keys() - ended:
            for signal_number in self._sent:
                os.kill(pid, signal_number)

    def _death(self, local_rank: int, status: int) -> RankDeath:
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return RankDeath(local_rank, exit_code=code)
        is_ours = signal.SIGKILL in self._sent and -code == signal.SIGKILL
        return RankDeath(local_rank, exit_code=128 - code, signal_number=-code, is_ours=is_ours)


def ended_children() -> Iterator[tuple[int, int]]:
    """Collect the children of this process that have ended, in order: process id and status as of waitpid."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def wait_for_signal(signals: set[signal.Signals], *, until: float | None) -> int | None:
    """Sleep until one of the blocked `signals` arrives, and return it; None when `until` has passed.

    `until` is on the monotonic clock.
    """
    if until is None:
        return signal.sigwaitinfo(signals).si_signo
    arrived = signal.sigtimedwait(signals, max(0.0, until - time.monotonic()))
    return None if arrived is None else arrived.si_signo
