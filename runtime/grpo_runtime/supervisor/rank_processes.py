"""The ranks of one trainer pod as child processes of process 1. No torch here."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_runtime.process.lifetime import adopt_orphans
from grpo_runtime.report.position import STACKS_SIGNAL
from grpo_runtime.supervisor.fork_server import find_ranks


@dataclass(frozen=True)
class RankExit:
    """How a rank ended: `exit_code` as a shell would show it, 128 + n after signal n.

    `is_ours` says that the supervisor itself killed it.
    """

    local_rank: int
    exit_code: int
    signal_number: int | None = None
    is_ours: bool = False


StartForkServer = Callable[[Mapping[str, str], Path], int]
"""Starts a fork server, given the ranks' environment and the run directory; returns its process id. It is a
child of this process and calls `fork_ranks`."""


def spawned(command: Sequence[str]) -> StartForkServer:
    """A fork server that `command` starts; the run directory is appended."""

    def start(environment: Mapping[str, str], run_dir: Path) -> int:
        arguments = [*command, "--run-dir", str(run_dir)]
        # children would inherit the signals that are blocked here because the supervisor waits for them
        return os.posix_spawnp(command[0], arguments, environment, setsigmask=())

    return start


class RankProcesses:
    """Starts the ranks through a fork server, sends them signals, and collects how they end."""

    def __init__(
        self, environment: Mapping[str, str], *, run_dir: Path, start_fork_server: StartForkServer
    ) -> None:
        """Start the fork server. This process adopts the ranks once the fork server has ended."""
        adopt_orphans()
        self._fork_server: int | None = start_fork_server(environment, run_dir)
        self._ranks: dict[int, int] = {}
        self._run_dir = run_dir
        self._sent: list[signal.Signals] = []

    @property
    def is_alive(self) -> bool:
        """Whether a rank still runs, or the fork server that will fork them."""
        return self._fork_server is not None or bool(self._ranks)

    def collect_exits(self) -> list[RankExit]:
        """Collect every child of this process that has ended, and return the exits of ranks, in order.

        A fork server that ends without having forked ranks counts as rank 0. Orphans that are no ranks are
        collected and ignored.
        """
        exits = []
        ended = dict(ended_children())
        if self._fork_server is not None and (status := ended.pop(self._fork_server, None)) is not None:
            self._fork_server = None
            self._adopt(ended=set(ended))
            if not self._ranks:
                exits.append(self._exit(0, status))
        for pid, status in ended.items():
            if (local_rank := self._ranks.pop(pid, None)) is not None:
                exits.append(self._exit(local_rank, status))
        return exits

    def send(self, signal_number: signal.Signals) -> None:
        """Send a signal to every rank that still runs, and to ranks yet to be forked."""
        self._sent.append(signal_number)
        for pid in [*self._ranks, *([self._fork_server] if self._fork_server is not None else [])]:
            os.kill(pid, signal_number)

    def kill(self) -> None:
        """Kill every rank that still runs; their exits then have `is_ours`."""
        self.send(signal.SIGKILL)

    def dump_stacks(self, local_ranks: Iterable[int]) -> None:
        """Make these ranks, which have reported their positions, print the stacks of their threads. One that
        is stopped does so once it continues."""
        wanted = set(local_ranks)
        for pid, local_rank in self._ranks.items():
            if local_rank in wanted:
                os.kill(pid, STACKS_SIGNAL)

    def _adopt(self, *, ended: set[int]) -> None:
        """Register the ranks, and send those that still run the signals that the fork server got."""
        self._ranks = {pid: local_rank for local_rank, pid in enumerate(find_ranks(self._run_dir))}
        for pid in self._ranks.keys() - ended:
            for signal_number in self._sent:
                os.kill(pid, signal_number)

    def _exit(self, local_rank: int, status: int) -> RankExit:
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return RankExit(local_rank, exit_code=code)
        is_ours = signal.SIGKILL in self._sent and -code == signal.SIGKILL
        return RankExit(local_rank, exit_code=128 - code, signal_number=-code, is_ours=is_ours)


def ended_children() -> Iterator[tuple[int, int]]:
    """Collect the children of this process that have ended, in order: process id and status as waitpid
    returns it."""
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
