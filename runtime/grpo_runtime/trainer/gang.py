"""The ranks of one trainer pod as child processes of process 1. No torch here."""

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


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
    """Starts the ranks, reaps every child of this process, and can stop what still runs."""

    def __init__(self, command: Sequence[str], environments: Sequence[Mapping[str, str]]) -> None:
        """Start one process of `command` for each of `environments`; their order is the local rank."""
        # the signals that the supervisor waits for are blocked in it, which children would inherit
        self._ranks = {
            os.posix_spawnp(command[0], command, environment, setsigmask=()): local_rank
            for local_rank, environment in enumerate(environments)
        }
        self._has_killed = False

    @property
    def is_alive(self) -> bool:
        """Whether any rank still runs."""
        return bool(self._ranks)

    def reap(self) -> list[RankDeath]:
        """Collect the children that have ended, and return those that were ranks, in order.

        As process 1 we inherit orphans too: they are collected and forgotten.
        """
        deaths = []
        for pid, status in ended_children():
            if (local_rank := self._ranks.pop(pid, None)) is not None:
                deaths.append(self._death(local_rank, status))
        return deaths

    def send(self, signal_number: signal.Signals) -> None:
        """Send a signal to every rank that still runs."""
        for pid in self._ranks:
            os.kill(pid, signal_number)

    def kill(self) -> None:
        """End every rank that still runs, at once; their deaths are then ours."""
        self._has_killed = True
        self.send(signal.SIGKILL)

    def _death(self, local_rank: int, status: int) -> RankDeath:
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return RankDeath(local_rank, exit_code=code)
        is_ours = self._has_killed and -code == signal.SIGKILL
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
