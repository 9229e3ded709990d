"""Commands that are bounded in time, with all that they start. Standard library only: `make test` uses it."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import BinaryIO

OK = "ok"
"""The outcome of a command that ended with 0."""
STOPPED = Event()
"""Set by Ctrl-C or SIGTERM: commands that run are ended, and no other one begins."""


def stop_on_signals() -> None:
    """Let Ctrl-C and SIGTERM end the commands that run, with all that these have started."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: STOPPED.set())


def outcome_of(
    command: Sequence[str],
    *,
    budget_seconds: int,
    grace_seconds: int = 60,
    folder: Path,
    environment: Mapping[str, str],
    output: BinaryIO | None = None,
) -> str:
    """Run a command in a folder, and say how it ended: `OK`, or a reason that begins with FAILED.

    After its budget it is interrupted, so that it can end what it has started, and after `grace_seconds` more
    it is killed. Its output goes to `output`, or where this process writes.
    """
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output else None,
        start_new_session=True,
    )
    began = time.monotonic()
    while (code := _ended(process)) is None:
        if STOPPED.is_set():
            _end(process, grace_seconds=grace_seconds)
            return "FAILED (stopped)"
        if time.monotonic() - began > budget_seconds:
            _end(process, grace_seconds=grace_seconds)
            return f"FAILED (over its budget of {budget_seconds} s)"
    return OK if code == 0 else f"FAILED ({code})"


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    """The exit code of a process that ends within a second."""
    try:
        return process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        return None


def _end(process: subprocess.Popen[bytes], *, grace_seconds: int) -> None:
    """Interrupt a command, so that it ends what it has started; then kill the rest."""
    # Handles instead of pids: a pid may belong to another process by the time it is used.
    handles = []
    for pid in _descendants(process.pid):
        with contextlib.suppress(ProcessLookupError):
            handles.append(os.pidfd_open(pid))
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(timeout=grace_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for handle in handles:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)


def _descendants(pid: int) -> list[int]:
    """The pids of all descendants of `pid`. Some lead sessions of their own, outside the process group."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(folder.name))
    found = list(parents.get(pid, []))
    for child in found:
        found += parents.get(child, [])
    return found
