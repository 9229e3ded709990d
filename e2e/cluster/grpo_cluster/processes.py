"""The cluster's own processes: started, remembered, and ended without ever touching a stranger's.

A process is remembered by pid, start time and boot, so a pid that was given to somebody else is
seen to be another process. Each also carries a marker in its environment, which finds those whose
record was lost in a crash.
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
"""All of Kubernetes is Go, whose collector takes a quarter of the API server's time. This costs memory, some
300 MB in the API server: on one machine a core is dearer."""


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
        """End it at once; nothing happens when it is gone or the pid is somebody else's by now."""
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(self.pid)
            try:
                # The descriptor pins the process, so the check and the signal mean the same one.
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
    """Start a process that outlives us, with its output in logs/NAME.log, and remember it."""
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
    """Every remembered process by name, dead or alive."""
    found = {}
    for record in sorted(settings.pids.glob("*.json")):
        with suppress(ValueError, TypeError):  # cut short by a crash: the marker still finds the process
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
    """Every living process that carries this cluster's marker."""
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
    """End every process of this cluster, remembered or marked, and wait until none is left."""

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
        # The command's name, in parentheses, may hold blanks: count from its end.
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _boot_id() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
