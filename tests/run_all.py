"""Everything `make test` runs, part by part, and a table of how long each took; with --matrix, what
`make test-matrix` runs, and with --fast, what `make test-fast` does.

Standard library only: the first part installs what the others need. Some parts run side by side, because one
alone leaves cores idle; their output is printed when they end. After a failed part the later ones still run,
unless they need it. On a machine that cannot run containers the parts that need them are skipped, which is
printed; with CI=true that is an error.
"""

import os
import shutil
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
sys.path[:0] = (str(ROOT / folder) for folder in ("bench", "e2e/cluster"))

from grpo_bench.bounded import OK, STOPPED, outcome_of, stop_on_signals  # noqa: E402 - of the tree, not installed
from grpo_cluster.ability import obstacle  # noqa: E402 - likewise

PYTEST = (".venv/bin/pytest", "-q", "--durations=24", "--durations-min=8")
SIDE_BY_SIDE = ("--dist", "loadfile", "--no-loadscope-reorder", "-n")
"""Options of pytest that run so many files side by side, and the tests of a file in their order: many tests
wait for deadlines and for processes that start, and leave a core idle."""
PRINTING = Lock()
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
}
"""Without PYTHONDONTWRITEBYTECODE: parts start hundreds of processes, which then share the compiled
sources. One thread of torch for each: several lose more to one another than they gain while parts run side
by side."""
PURE = "not engine and not apiserver and not cluster and not gpu and not matrix"
OF_THE_API_SERVER = ("tests/apiserver", "tests/chart")
ENGINES = ("tests/bench", "tests/runtime")
CUDA_IMAGE = "e2e/scenarios/test_cuda_image.py"


@dataclass(frozen=True)
class Part:
    """One command, which fails after `budget_seconds`.

    When a part that `is_needed` fails, nothing after it runs in its lane or in later stages. A part that
    `needs_cluster` needs the local cluster or its programs, which only root can install.
    """

    name: str
    command: Sequence[str]
    budget_seconds: int
    is_needed: bool = False
    needs_cluster: bool = False


Lane = Sequence[Part]
"""Parts that run one after the other."""

ENVIRONMENT_PART = Part("environment", ("make", "setup"), 600, is_needed=True)
FAST: Sequence[Sequence[Lane]] = (
    [[ENVIRONMENT_PART]],
    [
        [
            Part(
                "fast tests",
                (*PYTEST, *SIDE_BY_SIDE, "4", "-m", f"{PURE} and not processes", "e2e", "tests"),
                1200,
            )
        ]
    ],
)
PREPARATION: Sequence[Sequence[Lane]] = (
    [[ENVIRONMENT_PART]],
    [
        [
            Part(
                "Debian packages",
                ("make", "debian-packages", "browser", "compiler", "promtool"),
                600,
                is_needed=True,
                needs_cluster=True,
            )
        ]
    ],
    [
        [
            Part(
                "programs of the cluster and of tests",
                ("make", "cluster-programs", "versitygw"),
                1800,
                is_needed=True,
                needs_cluster=True,
            )
        ],
        [Part("built images", ("make", "built-images"), 1800, is_needed=True, needs_cluster=True)],
    ],
)
IMAGES = Part("cluster and images", ("make", "images"), 600, is_needed=True, needs_cluster=True)
TEST: Sequence[Sequence[Lane]] = (
    *PREPARATION,
    [
        [
            IMAGES,
            Part(
                "real pods",
                (*PYTEST, *SIDE_BY_SIDE, "2", "-m", "cluster and not matrix", "e2e"),
                2400,
                needs_cluster=True,
            ),
            Part(
                "real API server",
                (*PYTEST, *SIDE_BY_SIDE, "2", "-m", "apiserver and not matrix", *OF_THE_API_SERVER),
                1200,
                needs_cluster=True,
            ),
            Part("real engines", (*PYTEST, "-m", "engine and not matrix", *ENGINES), 2400),
        ],
        [
            Part("check", ("make", "check"), 1200),
            Part(
                "pure and contract tests",
                (*PYTEST, *SIDE_BY_SIDE, "2", "-m", PURE, "--ignore=tests/arch", "e2e", "tests"),
                4500,
            ),
        ],
    ],
)
"""Stages run one after the other, the lanes of a stage side by side: more of them on two cores only wait for
one another, and tests miss their deadlines."""
MATRIX: Sequence[Sequence[Lane]] = (
    *PREPARATION,
    [
        [
            IMAGES,
            # not by the test that needs it: a test may not take as long
            Part("Kueue and tools of GitOps", ("make", "kueue", "gitops-health"), 5400, needs_cluster=True),
            # whole files: the tests of most share a job
            Part(
                "every scenario on real pods",
                (*PYTEST, "-s", "-m", "cluster", f"--ignore={CUDA_IMAGE}", "e2e"),
                10800,
                needs_cluster=True,
            ),
            # its setup builds for long; over this budget it is interrupted, and removes what it has made
            Part(
                "the CUDA image in pods",
                (*PYTEST, "-s", "-m", "cluster", "-o", "faulthandler_timeout=7200", CUDA_IMAGE),
                6900,
                needs_cluster=True,
            ),
            Part(
                "cases on the API server",
                (*PYTEST, *SIDE_BY_SIDE, "2", "-m", "apiserver and matrix", *OF_THE_API_SERVER),
                1800,
                needs_cluster=True,
            ),
            Part("null GPUs", ("make", "test-nullgpu"), 7200),
        ],
        [
            Part(
                "cases on real engines",
                (*PYTEST, "-m", "engine and matrix", "tests"),
                10800,
            ),
            Part(
                "cases of processes",
                (*PYTEST, *SIDE_BY_SIDE, "2", "-m", "matrix and not engine and not apiserver", "tests"),
                10800,
            ),
        ],
    ],
)
"""What is combined in so many ways that `make test` has a selection of it."""


@dataclass(frozen=True)
class Result:
    """The outcome of a part."""

    part: Part
    outcome: str
    seconds: float = 0.0

    @property
    def is_ok(self) -> bool:
        return self.outcome == OK

    @property
    def is_skipped(self) -> bool:
        return self.outcome.startswith("skipped")


def without_cluster(stages: Sequence[Sequence[Lane]]) -> list[list[Lane]]:
    """The same stages with only the parts that need no cluster."""
    lanes = ([[part for part in lane if not part.needs_cluster] for lane in stage] for stage in stages)
    return [remaining for stage in lanes if (remaining := [lane for lane in stage if lane])]


def run_stage(lanes: Sequence[Lane]) -> list[Result]:
    """Run lanes side by side. A stage with a single part shows its output at once."""
    if [len(lane) for lane in lanes] == [1]:
        print_heading(lanes[0][0])
        return [run(lanes[0][0], output=None)]
    with ThreadPoolExecutor(len(lanes)) as pool:
        return [result for results in pool.map(run_lane, lanes) for result in results]


def run_lane(lane: Lane) -> list[Result]:
    """Run parts one after the other; those after a failed one that is needed are not run."""
    results: list[Result] = []
    for part in lane:
        results.append(Result(part, "not run") if is_stopped(results) else run_and_print_later(part))
    return results


def is_stopped(results: Sequence[Result]) -> bool:
    """Whether a part that is needed has failed."""
    return any(result.part.is_needed and not result.is_ok for result in results)


def run_and_print_later(part: Part) -> Result:
    """Run a part, and print all its output when it has ended."""
    with PRINTING:
        print(f"started: {part.name}", flush=True)
    with tempfile.TemporaryFile() as output:
        result = run(part, output=output)
        output.seek(0)
        with PRINTING:
            print_heading(part)
            shutil.copyfileobj(output, sys.stdout.buffer)
            sys.stdout.flush()
    return result


def print_heading(part: Part) -> None:
    print(f"\n===== {part.name}: {' '.join(part.command)}", flush=True)


def run(part: Part, *, output: BinaryIO | None) -> Result:
    """Run one part. It fails when it takes longer than its budget."""
    if STOPPED.is_set():
        return Result(part, "not run")
    began = time.monotonic()
    outcome = outcome_of(
        part.command,
        budget_seconds=part.budget_seconds,
        folder=ROOT,
        environment=ENVIRONMENT,
        output=output,
    )
    return Result(part, outcome, time.monotonic() - began)


def main(stages: Sequence[Sequence[Lane]], *, why_no_cluster: str | None = None, is_ci: bool = False) -> int:
    """Run all parts. Returns 0 when all of them passed.

    With `why_no_cluster`, the reason why this machine cannot run containers, the parts that need them are
    skipped, or nothing runs and it returns 1 with `is_ci`.
    """
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
    stop_on_signals()
    if "--fast" in sys.argv[1:]:
        sys.exit(main(FAST))
    chosen = MATRIX if "--matrix" in sys.argv[1:] else TEST
    sys.exit(main(chosen, why_no_cluster=obstacle(), is_ci=os.environ.get("CI") == "true"))
