"""Progress of long steps for a person: what began, that it still runs, how long it took, where its log is."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from grpo_cluster.settings import ClusterError

STILL_RUNNING_SECONDS = 20.0
NUM_LOG_LINES = 15


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Print when a step begins, that it still runs every 20 s, and how long it took."""
    began = time.monotonic()
    finished = threading.Event()

    def print_still_running() -> None:
        while not finished.wait(STILL_RUNNING_SECONDS):
            say(f"   ... {title} ({time.monotonic() - began:.0f} s)")

    say(f"==> {title}")
    printer = threading.Thread(target=print_still_running, daemon=True)
    printer.start()
    try:
        yield
    except BaseException:
        say(f"    failed after {time.monotonic() - began:.1f} s: {title}")
        raise
    finally:
        finished.set()
        printer.join()
    say(f"    done in {time.monotonic() - began:.1f} s")


def run_logged(
    command: Sequence[str | Path],
    *,
    log: Path,
    fix: str,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a command with its output in `log`.

    Raises ClusterError with the command, the log, its last lines, and `fix`: what a person can do.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        finished = subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if finished.returncode != 0:
        raise ClusterError(
            f"`{' '.join(str(part) for part in command)}` ended with {finished.returncode}.\n"
            f"Log: {log}\n{last_lines(log)}\n{fix}"
        )


def last_lines(log: Path, num_lines: int = NUM_LOG_LINES) -> str:
    """The end of a log file, indented; empty when there is none."""
    if not log.is_file():
        return ""
    lines = log.read_text(errors="replace").splitlines()[-num_lines:]
    return "\n".join(f"  | {line}" for line in lines)
