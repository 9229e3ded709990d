"""Everything `make test` runs, part by part, and a table of how long each took.

Standard library only: the first part installs what the others need. Some run side by side, for one
alone leaves cores idle; their output is printed when they end. A failed part does not hide the later ones,
unless they stand on it. A machine that cannot run containers skips what needs them and says so; with CI=true
that is an error.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import BinaryIO

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "e2e/cluster"))

from grpo_cluster.ability import obstacle  # noqa: E402 - of the tree, not installed

PYTEST = (".venv/bin/pytest", "-q", "--durations=8", "--durations-min=5")
BY_FILE = ("--dist", "loadfile", "--no-loadscope-reorder")
"""Files side by side, and the tests of a file in their order."""
PRINTING = Lock()
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Parts start hundreds of processes from the same sources: what one has compiled serves the others."""
FAST = "not engine and not apiserver and not cluster"


@dataclass(frozen=True)
class Part:
    """One command. `budget_seconds` is its limit; when a part that `is_needed` fails, nothing after it is run
    in its lane or in later stages.

    One that `needs_cluster` stands on the local cluster or its programs, which take root to install.
    """

    name: str
    command: Sequence[str]
    budget_seconds: int
    is_needed: bool = False
    needs_cluster: bool = False


Lane = Sequence[Part]
"""Parts that run one after the other."""

STAGES: Sequence[Sequence[Lane]] = (
    [[Part("environment", ("make", "setup"), 600, is_needed=True)]],
    [[Part("cluster programs", ("make", "cluster-programs"), 1500, is_needed=True, needs_cluster=True)]],
    [
        [
            Part("check", ("make", "check"), 300),
            Part("real API server", (*PYTEST, "-m", "apiserver", "tests"), 1200, needs_cluster=True),
        ],
        [
            Part("pure and contract tests", (*PYTEST, "-m", FAST, "tests", "e2e"), 1200),
            Part("real engines", (*PYTEST, "-m", "engine", "tests"), 2400),
        ],
        [
            Part("cluster and images", ("make", "images"), 900, is_needed=True, needs_cluster=True),
            Part(
                "real pods", (*PYTEST, "-n", "2", *BY_FILE, "-m", "cluster", "e2e"), 3600, needs_cluster=True
            ),
        ],
    ],
)
"""Stages run one after the other, the lanes of a stage side by side."""


@dataclass(frozen=True)
class Result:
    """How a part ended."""

    part: Part
    outcome: str
    seconds: float = 0.0

    @property
    def is_ok(self) -> bool:
        return self.outcome == "ok"

    @property
    def is_skipped(self) -> bool:
        return self.outcome.startswith("skipped")


def without_cluster(stages: Sequence[Sequence[Lane]]) -> list[list[Lane]]:
    """The same stages with only the parts that need no cluster."""
    lanes = ([[part for part in lane if not part.needs_cluster] for lane in stage] for stage in stages)
    return [kept for stage in lanes if (kept := [lane for lane in stage if lane])]


def run_stage(lanes: Sequence[Lane]) -> list[Result]:
    """Run lanes side by side; a part that is alone shows its output as it comes."""
    if [len(lane) for lane in lanes] == [1]:
        announce(lanes[0][0])
        return [run(lanes[0][0], output=None)]
    with ThreadPoolExecutor(len(lanes)) as pool:
        return [result for results in pool.map(run_lane, lanes) for result in results]


def run_lane(lane: Lane) -> list[Result]:
    """Run parts one after the other; what comes after a failed one that is needed is not run."""
    results: list[Result] = []
    for part in lane:
        results.append(Result(part, "not run") if is_stopped(results) else run_quietly(part))
    return results


def is_stopped(results: Sequence[Result]) -> bool:
    """Whether a part failed that is needed."""
    return any(result.part.is_needed and not result.is_ok for result in results)


def run_quietly(part: Part) -> Result:
    """Run a part and print what it said in one piece."""
    with tempfile.TemporaryFile() as output:
        result = run(part, output=output)
        output.seek(0)
        with PRINTING:
            announce(part)
            shutil.copyfileobj(output, sys.stdout.buffer)
            sys.stdout.flush()
    return result


def announce(part: Part) -> None:
    print(f"\n===== {part.name}: {' '.join(part.command)}", flush=True)


def run(part: Part, *, output: BinaryIO | None) -> Result:
    """Run one part within its budget."""
    began = time.monotonic()
    process = subprocess.Popen(
        part.command,
        cwd=ROOT,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output else None,
        start_new_session=True,
    )
    try:
        code = process.wait(timeout=part.budget_seconds)
        outcome = "ok" if code == 0 else f"FAILED ({code})"
    except subprocess.TimeoutExpired:
        end(process)
        outcome = f"FAILED (over its budget of {part.budget_seconds} s)"
    except KeyboardInterrupt:
        end(process)
        raise
    return Result(part, outcome, time.monotonic() - began)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a part to stop, so that its fixtures end what they started; after a minute, end what is left."""
    # Handles and not numbers: a number may be a stranger's by the time it is used.
    handles = []
    for pid in descendants(process.pid):
        with contextlib.suppress(ProcessLookupError):
            handles.append(os.pidfd_open(pid))
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for handle in handles:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)


def descendants(pid: int) -> list[int]:
    """Every process below `pid`: some lead sessions of their own, which a process group does not reach."""
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


def main(
    stages: Sequence[Sequence[Lane]] = STAGES, *, why_no_cluster: str | None = None, is_ci: bool = False
) -> int:
    """0 when every part passed that could be run; `why_no_cluster` says why some cannot."""
    began = time.monotonic()
    results: list[Result] = []
    if why_no_cluster:
        parts = [part for stage in stages for lane in stage for part in lane if part.needs_cluster]
        results = [Result(part, f"skipped: {why_no_cluster}") for part in parts]
        print(f"this machine cannot run containers ({why_no_cluster}); skipped are:")
        print("\n".join(f"  {part.name}" for part in parts), flush=True)
        if is_ci:
            print("with CI=true nothing may be skipped: run on a machine that can run containers")
            return 1
        stages = without_cluster(stages)
    for stage in stages:
        if is_stopped(results):
            results += [Result(part, "not run") for lane in stage for part in lane]
        else:
            results += run_stage(stage)
    width = max(len(result.part.name) for result in results)
    print(f"\n{'part':{width}}  seconds  outcome")
    for result in results:
        print(f"{result.part.name:{width}}  {result.seconds:7.0f}  {result.outcome}")
    print(f"{'all, some side by side':{width}}  {time.monotonic() - began:7.0f}")
    num_passed = sum(result.is_ok for result in results)
    num_skipped = sum(result.is_skipped for result in results)
    num_failed = len(results) - num_passed - num_skipped
    print(f"\nparts: {num_passed} passed, {num_failed} failed, {num_skipped} skipped")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main(why_no_cluster=obstacle(), is_ci=os.environ.get("CI") == "true"))
