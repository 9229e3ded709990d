"""The processes of a local job: each has a log of its own, none outlives the one that started them, and of
each that ends is known how and why."""

import functools
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from grpo_api.contract.exit_codes import exit_policy
from grpo_api.contract.progress import TerminationMessage
from grpo_runtime.process.lifetime import adopt_orphans, die_with
from grpo_runtime.process.termination import termination_message, was_killed_by
from grpo_runtime.supervisor.rank_processes import ended_children

_ORPHANS_MAY_FINISH_SECONDS = 20.0


@dataclass(frozen=True)
class ProcessExit:
    """How a process ended: `exit_code` as a shell would show it, 128 + n after signal n."""

    name: str
    exit_code: int
    signal_number: int | None = None


@dataclass(frozen=True)
class ProcessOutcome:
    """How the process `name` ended and why."""

    name: str
    termination: TerminationMessage


def outcome_of(process_exit: ProcessExit, *, termination_log: Path) -> ProcessOutcome:
    """The outcome with the termination message that the process wrote, or else with what its exit says."""
    name, exit_code = process_exit.name, process_exit.exit_code
    written = _written_message(termination_log)
    if written is not None and written.exit_code == exit_code:
        return ProcessOutcome(name, written)
    if process_exit.signal_number is None:
        sentence = (
            f"{name} ended with exit code {exit_code} ({exit_policy(exit_code).meaning}) and gave no reason"
        )
    else:
        sentence = f"{name} {was_killed_by(process_exit.signal_number)}"
    return ProcessOutcome(name, termination_message(exit_code, sentence))


class ProcessTable:
    """Starts processes by name, collects their exits, and can end every descendant of this process.

    Each leads a session of its own, so that Ctrl-C in a terminal reaches this process alone, which stops them
    in order. The kernel kills them when this process is killed.
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
                preexec_fn=functools.partial(_prepare_child, os.getpid()),  # noqa: PLW1509
            )
        self._names[process.pid] = name
        self._started[name] = process

    @property
    def names(self) -> set[str]:
        """The names of the processes that run."""
        return set(self._started)

    def collect_exits(self) -> list[ProcessExit]:
        """The processes that have ended since the last call, in order. Orphans are collected and ignored."""
        exits: list[ProcessExit] = []
        for pid, status in ended_children():
            if (name := self._names.pop(pid, None)) is not None:
                code = os.waitstatus_to_exitcode(status)
                self._started.pop(name).returncode = code
                exits.append(ProcessExit(name, code) if code >= 0 else ProcessExit(name, 128 - code, -code))
        return exits

    def send(self, number: signal.Signals, *names: str) -> None:
        """Send a signal to those of `names` that run."""
        for name in names:
            if name in self._started:
                os.kill(self._started[name].pid, number)

    def kill(self, *names: str) -> None:
        """Kill those of `names` that run, together with their process groups."""
        for name in names:
            if name in self._started:
                os.killpg(self._started[name].pid, signal.SIGKILL)

    def end_orphans(self) -> None:
        """Kill the processes that ended ones of ours have left behind, and those that these leave in turn.

        Raises TimeoutError if they do not come to an end.
        """
        deadline = time.monotonic() + _ORPHANS_MAY_FINISH_SECONDS
        while orphans := _children() - self._names.keys():
            for pid in orphans:
                # it is our child until waitpid, so that its number cannot be another process's
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes {orphans} keep leaving others behind")

    def end_all(self) -> None:
        """Kill every descendant."""
        self.kill(*self.names)
        for pid, name in list(self._names.items()):
            _, status = os.waitpid(pid, 0)
            self._started.pop(name).returncode = os.waitstatus_to_exitcode(status)
            del self._names[pid]
        self.end_orphans()


def _written_message(path: Path) -> TerminationMessage | None:
    try:
        return TerminationMessage.model_validate_json(path.read_text())
    except (FileNotFoundError, ValidationError):
        return None  # a process that was killed wrote none, or only a part of one


def _prepare_child(parent_pid: int) -> None:
    # the child would inherit the signals that are blocked in the parent because it waits for them
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    die_with(parent_pid)


def _children() -> set[int]:
    """Processes whose parent is this one, including those that have ended and were not collected yet."""
    own = os.getpid()
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
            if parent == own:
                found.add(int(folder.name))
    return found
