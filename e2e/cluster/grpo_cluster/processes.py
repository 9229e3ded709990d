"""Starts, records and ends the processes of the cluster, and never ends a process that is not one of them.

A process is recorded by pid, start time and boot id, so that a reused pid is recognised as another process.
Each process also has a marker in its environment, by which it is found when its record was lost in a crash.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from grpo_cluster.settings import ClusterSettings
from grpo_cluster.waiting import wait_until

_PROC = Path("/proc")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_FEWER_COLLECTIONS = {"GOGC": "400"}
"""Fewer garbage collections in Go, which otherwise take a quarter of the API server's time. They cost some
300 MB of memory in the API server."""


@dataclass(frozen=True)
class Process:
    """One process of this machine; `start_time` is in clock ticks since boot."""

    pid: int
    start_time: int
    boot_id: str

    @property
    def is_alive(self) -> bool:
        return self.boot_id == _boot_id() and _start_time(self.pid) == self.start_time

    @property
    def age_seconds(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.start_time / _TICKS_PER_SECOND

    @property
    def started_at(self) -> float:
        """Seconds since 1970."""
        return time.time() - self.age_seconds

    @property
    def resident_bytes(self) -> int:
        try:
            pages = int((_PROC / str(self.pid) / "statm").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    def kill(self) -> None:
        """Kill it. Does nothing when it has ended, also when its pid belongs to another process by now."""
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(self.pid)
            try:
                # The descriptor refers to one process, so the check and the signal are about the same one.
                if self.is_alive:
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            finally:
                os.close(descriptor)


def start(
    settings: ClusterSettings,
    name: str,
    command: Sequence[str | Path],
    *,
    environment: Mapping[str, str] | None = None,
) -> Process:
    """Start a process that continues when we end, with its output in logs/NAME.log, and record it."""
    settings.logs.mkdir(parents=True, exist_ok=True)
    settings.pids.mkdir(parents=True, exist_ok=True)
    key, _, value = settings.marker.partition("=")
    with log_path(settings, name).open("ab") as output:
        child = subprocess.Popen(
            [str(part) for part in command],
            cwd="/",
            env={
                "PATH": os.environ["PATH"],
                **_FEWER_COLLECTIONS,
                "HOME": str(settings.state_dir),
                **(environment or {}),
                key: value,
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    process = Process(pid=child.pid, start_time=_start_time(child.pid) or 0, boot_id=_boot_id())
    (settings.pids / f"{name}.json").write_text(json.dumps(asdict(process)))
    return process


def recorded(settings: ClusterSettings) -> dict[str, Process]:
    """All recorded processes by name, dead or alive."""
    found = {}
    for record in sorted(settings.pids.glob("*.json")):
        # A record that is half written, because of a crash, is left out: the marker still finds its process.
        with suppress(ValueError, TypeError):
            found[record.stem] = Process(**json.loads(record.read_text()))
    return found


def running(settings: ClusterSettings, name: str) -> Process | None:
    """The process of that name if it is alive."""
    process = recorded(settings).get(name)
    return process if process and process.is_alive else None


def forget(settings: ClusterSettings, name: str) -> None:
    (settings.pids / f"{name}.json").unlink(missing_ok=True)


def log_path(settings: ClusterSettings, name: str) -> Path:
    return settings.logs / f"{name}.log"


def marked(settings: ClusterSettings) -> list[Process]:
    """All living processes that have this cluster's marker."""
    marker = settings.marker.encode()
    found = []
    for folder in _PROC.iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            is_ours = marker in (folder / "environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        start_time = _start_time(int(folder.name))
        if is_ours and start_time is not None:
            found.append(Process(pid=int(folder.name), start_time=start_time, boot_id=_boot_id()))
    return found


def kill_all(settings: ClusterSettings, *, timeout_seconds: float = 20.0) -> None:
    """Kill all processes of this cluster, recorded or marked, and wait until none is left."""

    def none_left() -> bool:
        left = [process for process in recorded(settings).values() if process.is_alive] + marked(settings)
        for process in left:
            process.kill()
        return not left

    wait_until(none_left, timeout_seconds=timeout_seconds, what="the cluster's processes to end")
    for name in recorded(settings):
        forget(settings, name)


def _start_time(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat; None when there is no such process or it is a zombie."""
    try:
        # The command's name, in parentheses, may contain blanks: count from its end.
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _boot_id() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
