"""The processes of a local job: each with a log of its own, none outliving the one that started them."""

import functools
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_runtime.parent_death import adopt_orphans, die_with
from grpo_runtime.trainer.gang import ended_children

_LAST_ONES_SECONDS = 20.0


@dataclass(frozen=True)
class Death:
    """How a process ended: `exit_code` as a shell would show it, 128 + n after signal n."""

    name: str
    exit_code: int
    signal_number: int | None = None


class Household:
    """Starts processes by name, reaps them, and can end every descendant of this process.

    They lead sessions of their own, so that Ctrl-C in a terminal reaches this process alone, which stops
    them in order. The kernel kills them when this process is killed.
    """

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        adopt_orphans()

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str], *, log: Path) -> None:
        """Start `command` as `name`; what it prints is appended to `log`."""
        with log.open("ab") as output:
            output.write(f"=== {time.strftime('%Y-%m-%d %H:%M:%S')} {name} starts\n".encode())
            output.flush()
            process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                # this process has one thread, so that it is safe to run Python between fork and exec
                preexec_fn=functools.partial(_become_a_child, os.getpid()),  # noqa: PLW1509
            )
        self._names[process.pid] = name
        self._started[name] = process

    @property
    def names(self) -> set[str]:
        """The processes that run."""
        return set(self._started)

    def reap(self) -> list[Death]:
        """Those that have ended since the last call, in order. Orphans are collected and forgotten."""
        deaths: list[Death] = []
        for pid, status in ended_children():
            if (name := self._names.pop(pid, None)) is not None:
                code = os.waitstatus_to_exitcode(status)
                self._started.pop(name).returncode = code
                deaths.append(Death(name, code) if code >= 0 else Death(name, 128 - code, -code))
        return deaths

    def send(self, number: signal.Signals, *names: str) -> None:
        """Send a signal to those of `names` that run."""
        for name in names:
            if name in self._started:
                os.kill(self._started[name].pid, number)

    def kill(self, *names: str) -> None:
        """End those of `names` that run, with everything in their sessions' first groups, at once."""
        for name in names:
            if name in self._started:
                os.killpg(self._started[name].pid, signal.SIGKILL)

    def end_orphans(self) -> None:
        """Kill what ended processes of ours have left behind, and what that leaves, until there is none."""
        deadline = time.monotonic() + _LAST_ONES_SECONDS
        while orphans := _children() - self._names.keys():
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)  # ours until it is reaped, so its number cannot be another's
                os.waitpid(pid, 0)
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes {orphans} leave others behind without end")

    def end_all(self) -> None:
        """Kill every descendant."""
        self.kill(*self.names)
        for pid, name in list(self._names.items()):
            _, status = os.waitpid(pid, 0)
            self._started.pop(name).returncode = os.waitstatus_to_exitcode(status)
            del self._names[pid]
        self.end_orphans()


def _become_a_child(parent_pid: int) -> None:
    # those that the parent waits for are blocked in it, which a child would inherit
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    die_with(parent_pid)


def _children() -> set[int]:
    """Processes whose parent is this one, ended ones included until they are reaped."""
    own = os.getpid()
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while we looked
            if parent == own:
                found.add(int(folder.name))
    return found
