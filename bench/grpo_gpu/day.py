"""Ten minutes on one GPU: what runs in them, in order of worth, and the report that comes of it."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from grpo_bench.bounded import OK, STOPPED, outcome_of, stop_on_signals
from grpo_bench.errors import BenchError
from grpo_bench.machine import circumstances
from grpo_gpu.day_table import rows_of, torch_of_the_image

ROOT = Path(__file__).parents[2]
GRACE_SECONDS = 5
"""For a part that took too long, to end what it has started."""
TESTS = "tests"
Report = dict[str, Any]
"""What the JSON file has."""


@dataclass(frozen=True)
class Part:
    """A command, how long it may take, and the variables that it gets beside those of this process.

    It writes what it finds to the file `results`: lines of JSON, or for tests JUnit's XML.
    """

    name: str
    command: Sequence[str]
    budget_seconds: int
    results: Path
    variables: Mapping[str, str]


@dataclass(frozen=True)
class Sizes:
    """The options of each script, and of the tests pytest's."""

    tests: str = "-vv"
    """With the `-q` of `make test-gpu` the log names each test before it runs."""
    learner: str = "--size 0.5B"
    logprobs: str = "--cases 27M,152k --pairs 3"
    sync: str = "--size 4000"
    memory: str = "--size 1.5B --way DDP --way FSDP2 --sequences 16 --rounds 2"
    checkpoint: str = "--cases 110M --pairs 3"
    patience: int = 1
    """A factor for the time that each part has."""


WHOLE = Sizes()
SMALL = Sizes(
    tests="-vv -k 'the_hashes_of_rows or (learns and DDP)'",
    learner="--size tiny --sequences 8 --tokens 24 --budget 64 --rounds 2",
    logprobs="--cases tiny --pairs 1",
    sync="--size 2 --rounds 2",
    memory="--size tiny --way DDP --way FSDP2 --sequences 4 --tokens 24 --budget 64 --rounds 1",
    checkpoint="--cases tiny --pairs 1",
    patience=4,
)
"""What a CPU computes in place of a GPU in a minute or two, to try the whole flow."""


def parts_of_the_day(sizes: Sizes, *, results: Path) -> list[Part]:
    """What runs, the most worth first. With what is granted to those that take too long, all of them end
    within ten minutes."""

    def script(name: str, path: str, options: str, budget_seconds: int) -> Part:
        file = results / f"{name}.jsonl"
        command = (sys.executable, f"bench/{path}.py", *options.split(), "--json", str(file))
        return Part(name, command, sizes.patience * budget_seconds, file, {})

    xml = results / f"{TESTS}.xml"
    tests = ("make", "--no-print-directory", "test-gpu", f"PYTHON={sys.executable}")
    options = {"PYTEST_ADDOPTS": f"{sizes.tests} --junitxml={xml}"}
    return [
        Part(TESTS, tests, sizes.patience * 200, xml, options),
        script("learner", "gpu/learner", sizes.learner, 100),
        script("logprobs", "logprobs", f"--device cuda {sizes.logprobs}", 40),
        script("packing, tag and IPC", "gpu/sync", sizes.sync, 60),
        script("memory beside its plan", "gpu/learner", sizes.memory, 100),
        script("checkpoint", "checkpoint", f"--device cuda {sizes.checkpoint}", 45),
    ]


def run_day(sizes: Sizes, *, commit: str | None, json_file: Path) -> int:
    """Run all parts, and write the report, anew after each of them. Returns 0 when all are ok.

    Raises BenchError when there is no GPU.
    """
    stop_on_signals()
    report = _head(commit=commit)
    print(f"{report['device']}, {report['versions']}, commit {report['commit']}", flush=True)
    with tempfile.TemporaryDirectory(prefix="grpo-gpu-day-") as folder:
        run_parts(parts_of_the_day(sizes, results=Path(folder)), report=report, json_file=json_file)
    for part in report["parts"]:
        print(f"{part['name']:24} {part['seconds']:6.0f} s  {part['outcome']}")
    print(f"{json_file} has all figures: make gpu-day-table JSON={json_file} brings them into the docs")
    return 0 if all(part["outcome"] == OK for part in report["parts"]) else 1


def run_parts(parts: Sequence[Part], *, report: Report, json_file: Path) -> None:
    """Run one part after the other, also after one that failed, and add to the report what they found."""
    for number, part in enumerate(parts, start=1):
        print(f"\n===== {number} of {len(parts)}: {part.name}, up to {part.budget_seconds} s", flush=True)
        began = time.monotonic()
        outcome = "not run" if STOPPED.is_set() else _outcome_of(part)
        try:
            results = _results_of(part)
        except (ElementTree.ParseError, json.JSONDecodeError):
            # a part that was ended may have been writing them
            outcome, results = f"{outcome}, results unreadable", []
        print(f"===== {part.name}: {outcome} after {time.monotonic() - began:.0f} s", flush=True)
        report["parts"].append(
            {
                "name": part.name,
                "outcome": outcome,
                "seconds": round(time.monotonic() - began, 1),
                "results": results,
            }
        )
        report["rows"] = [asdict(row) for row in rows_of(report["parts"], torch=report["versions"]["torch"])]
        json_file.write_text(json.dumps(report, indent=1) + "\n")


def _outcome_of(part: Part) -> str:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **part.variables}
    return outcome_of(
        part.command,
        budget_seconds=part.budget_seconds,
        grace_seconds=GRACE_SECONDS,
        folder=ROOT,
        environment=environment,
    )


def _results_of(part: Part) -> list[dict[str, Any]]:
    """What a part has written, also one that did not end. Raises ParseError or JSONDecodeError when that is
    not whole."""
    if not part.results.exists():
        return []
    if part.results.suffix == ".xml":
        return [_of_tests(ElementTree.parse(part.results).getroot())]  # noqa: S314 - our own file
    return [json.loads(line) for line in part.results.read_text().splitlines()]


def _of_tests(suites: ElementTree.Element) -> dict[str, Any]:
    cases = list(suites.iter("testcase"))
    outcomes = {
        what: [_name_of(case) for case in cases if {part.tag for part in case} & tags]
        for what, tags in (("failed", {"failure", "error"}), ("skipped", {"skipped"}))
    }
    num_passed = len(cases) - sum(map(len, outcomes.values()))
    return {"bench": TESTS, "num_passed": num_passed, **outcomes}


def _name_of(case: ElementTree.Element) -> str:
    """The file of a test as a module, and its name."""
    return f"{case.get('classname')}::{case.get('name')}"


def _head(*, commit: str | None) -> Report:
    """Where and of what it was measured. Raises BenchError without a GPU."""
    here = circumstances()
    name, memory, driver = _gpu()
    return {
        "date": here.date,
        # a tree that was carried to the machine may have no history
        "commit": commit or here.commit,
        "device": name,
        "memory": memory,
        "driver": driver,
        "cpu": f"{here.num_cores} cores of {here.cpu}",
        "versions": {package: version(package) for package in ("torch", "transformers")},
        "torch_of_the_image": torch_of_the_image((ROOT / "runtime/requirements-cuda.txt").read_text()),
        "parts": [],
        "rows": [],
    }


def _gpu() -> list[str]:
    """Name, memory and driver of the first GPU, by its driver: this process makes no context on it."""
    command = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    try:
        asked = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        raise BenchError(
            f"bench/gpu/day.py needs an NVIDIA GPU, and nvidia-smi finds none: {error}"
        ) from error
    return asked.stdout.splitlines()[0].split(", ")
