"""Whole jobs of `grpo-runtime run` on null GPUs, in the forms of the examples, with vLLM's CUDA build.

Models, data and numbers are small; everything else is what a GPU gets. The trainer's numbers are the CPU's,
and so are those of the engines: see `mirror/engine_mirror.py`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from grpo_api.contract.run_config import RunConfig
from grpo_api.resolve import resolve
from grpo_api.v1alpha1.job import parse_job
from grpo_nullgpu.machine import PROGRAMS, NullMachine, processes_with_torch
from grpo_operator.children.pod import CACHE_DIR, COMPILED
from grpo_runtime.report.metrics_file import MetricsRecord, read_metrics

_ROOT = Path(__file__).parents[3]
CUDA_ENVIRONMENT = _ROOT / ".venv-cuda"
_STARTED_AGAIN = re.compile(r"is started again|attempt \d+ follows")
_LOOK_SECONDS, _COUNT_SECONDS = 0.05, 5.0
_UNDER_A_READ_ONLY_ROOT = (
    *("unshare", "--mount", "--propagation", "private", "bash", "-ec"),
    'for own in /tmp "$0"; do mount --bind "$own" "$own"; done; mount -o remount,bind,ro /; exec "$@"',
)
"""Followed by the only folder beside /tmp that can be written to, and by a command: as in a pod."""
SMALL: Mapping[str, Any] = {
    "algorithm": {
        "promptsPerStep": 2,
        "groupSize": 4,
        "optimizer": {"learningRate": 1e-3, "warmupSteps": 0},
    },
    "sampling": {"maxTokens": 16},
    "engine": {"maxModelLen": 256, "kvCacheMemory": "64Mi"},
    "checkpoint": {"everySteps": 1, "claimName": None, "shared": None},
}
"""What every job has other than its example, beside model and data."""


KV_CACHE_BYTES = 64 << 20
EAGER: Mapping[str, Any] = {"args": ["--enforce-eager"]}
"""Of an engine: without CUDA graphs, and without what torch compiles."""


def gpus(number: int) -> dict[str, Any]:
    """Of a trainer, or of each engine."""
    return {"resources": {"limits": {"nvidia.com/gpu": number, "memory": None}, "requests": None}}


ONE_AND_ONE: Mapping[str, Any] = {"trainer": gpus(1), "rollout": {"replicas": 1, **gpus(1)}}
"""A trainer of one rank and an engine, each with a GPU."""


@dataclass(frozen=True)
class NullJob:
    """A job in the form of an example, with fewer GPUs, smaller numbers and other fields."""

    example: str
    num_gpus: int
    changes: Mapping[str, Any]
    """Of its spec: a mapping changes what it names, and None removes it."""
    has_read_only_root: bool = False
    """Whether its processes find what a pod's find: a root that is read-only, and folders for caches."""
    may_start_again: bool = False
    """Whether an attempt or an engine may follow another one."""
    num_steps: int = 3
    most_processes_with_torch: int = 4
    """At a time, once its engines compute."""

    def document(self) -> dict[str, Any]:
        """As a file has it."""
        documents = yaml.safe_load_all((_ROOT / f"examples/{self.example}.yaml").read_text())
        job: dict[str, Any] = next(each for each in documents if each["kind"] == "GRPOJob")
        # half of what a random model writes has one of these, so that there is something to learn
        vowel = {"name": "vowel", "builtin": "regex", "pattern": "[aeiou]"}
        own = {
            "model": {"source": "pvc://data/model"},
            "dataset": {
                "source": "pvc://data/train.jsonl",
                "subset": None,
                "prompt": "question",
                "answer": "answer",
            },
            "rewards": [*job["spec"]["rewards"], vowel],
        }
        for changes in (own, SMALL, {"algorithm": {"steps": self.num_steps}}, self.changes):
            job["spec"] = changed(job["spec"], changes)
        return job

    @property
    def run_config(self) -> RunConfig:
        """What it is for the processes of one machine."""
        return resolve(parse_job(self.document()), is_one_machine=True)

    def write(self, folder: Path) -> Path:
        """Its file, with its model and data beside it."""
        of_model_files("write", folder / "data/model")
        write_questions(folder / "data/train.jsonl")
        path = folder / "job.yaml"
        path.write_text(yaml.safe_dump(self.document()))
        return path


def changed(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with others in their place, also within mappings; None removes one."""
    found = dict(fields)
    for name, value in changes.items():
        before = found.get(name)
        is_deeper = isinstance(value, Mapping) and isinstance(before, Mapping)
        found[name] = changed(before, value) if is_deeper else value
    return {name: value for name, value in found.items() if value is not None}


def of_model_files(what: str, *folders: Path) -> list[str]:
    """The lines that the program of that name prints. It has torch of its own, for a moment."""
    program = PROGRAMS / "model_files.py"
    done = subprocess.run(
        [sys.executable, program, what, *folders],
        env={**os.environ, "PYTHONPATH": str(PROGRAMS.parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def write_questions(file: Path) -> None:
    """In the form of GSM8K."""
    rows = ({"question": f"{number} + 1?", "answer": f"#### {number + 1}"} for number in range(8))
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


class RunningJob:
    """`grpo-runtime run` of a job on a machine of its own, whose files are in `folder`."""

    def __init__(self, job: NullJob, folder: Path, **variables: str) -> None:
        self.machine = NullMachine(
            folder, num_gpus=job.num_gpus, has_numbers=True, python_environment=CUDA_ENVIRONMENT
        )
        self.output = folder / "out"
        self.most_processes_with_torch = 0
        """At the same time, as far as it was looked."""
        self._job = job
        self._next_count = 0.0
        self._model = folder / "data/model"
        self._kept = folder / "kept"
        self._engines = folder / "engines"
        self._screen = folder / "screen"
        command = (CUDA_ENVIRONMENT / "bin/grpo-runtime", "run", job.write(folder))
        options = ("--output", self.output, "--volume", f"claim/data={folder / 'data'}")
        environment = self.machine.environment(NULL_GPU_ENGINES=str(self._engines), **variables)
        begun: tuple[object, ...] = (*command, *options)
        if job.has_read_only_root:
            environment |= caches_of_a_pod(folder / "cache")
            begun = (*_UNDER_A_READ_ONLY_ROOT, folder, *begun)
        with self._screen.open("wb") as screen:
            self._process = subprocess.Popen(
                list(map(str, begun)), env=environment, stdout=screen, stderr=screen
            )

    def end(self, *, seconds: float) -> list[MetricsRecord]:
        """The records of its steps, all of which it has made. Keeps what the trainer saves of each step."""
        code = self.ended_with(seconds=seconds)
        assert code == 0, self.said()
        records = read_metrics(self.output / "metrics.jsonl")
        assert [record.step for record in records] == list(range(1, self._job.num_steps + 1))
        return records

    def ended_with(self, *, seconds: float) -> int:
        """Its exit code, once it has one."""
        self.wait_until(lambda: self._process.poll() is not None, seconds=seconds)
        return self._process.returncode

    def wait_for(self, sentence: str, *, seconds: float) -> None:
        """Until it has said so on its screen."""
        self.wait_until(lambda: sentence in self.screen, seconds=seconds)

    def wait_for_step(self, step: int, *, seconds: float) -> None:
        """Until that step is saved."""
        saved = self.output / f"checkpoints/step-{step:06d}/manifest.json"
        self.wait_until(saved.exists, seconds=seconds)

    def wait_until(self, is_so: Callable[[], bool], *, seconds: float) -> None:
        """Keeping what the trainer saves meanwhile. Raises AssertionError with what the job says when that
        takes longer, when it has ended, or when something starts again that may not."""
        deadline = time.monotonic() + seconds
        while not is_so():
            self._keep_saved()
            self._count()
            assert self._job.may_start_again or not _STARTED_AGAIN.search(self.screen), self.said()
            assert time.monotonic() < deadline, f"not so in {seconds:g} s\n{self.said()}"
            assert self._process.poll() is None or is_so(), self.said()
            time.sleep(_LOOK_SECONDS)

    def _keep_saved(self) -> None:
        """The job removes older ones."""
        for folder in self.output.glob("checkpoints/step-??????"):
            if (folder / "manifest.json").exists() and not (kept := self._kept / folder.name).exists():
                shutil.copytree(folder / "model", kept, copy_function=os.link)

    def _count(self) -> None:
        """From when an engine computes: before, libraries start Python for a moment to look at something."""
        if self._engines.exists() and time.monotonic() > self._next_count:
            self._next_count = time.monotonic() + _COUNT_SECONDS
            found = len(processes_with_torch(self._process.pid))
            self.most_processes_with_torch = max(self.most_processes_with_torch, found)

    def stop(self) -> None:
        """End it, with all that it started."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    @property
    def run_config(self) -> RunConfig:
        """What its processes do."""
        return self._job.run_config

    @property
    def screen(self) -> str:
        """What it has printed."""
        return self._screen.read_text()

    def said(self) -> str:
        """What it printed, and the ends of its logs."""
        logs = sorted(self.output.glob("logs/*.log"))
        ends = [f"{path.name}:\n{path.read_text()[-6000:]}" for path in logs]
        return "\n".join([self.screen, *ends])

    def weights_of_the_trainer(self) -> list[str]:
        """Digests by version: of the model it began with, and of each step before the last one."""
        saved = (self._model, *(self._kept / f"step-{step:06d}" for step in range(1, self._job.num_steps)))
        return of_model_files("digests", self._model, *saved)

    def said_by_engines(self, what: str) -> dict[int, list[dict[str, Any]]]:
        """What the processes of engines wrote of themselves that has such a field, by process id."""
        found: dict[int, list[dict[str, Any]]] = {}
        for line in map(json.loads, self._engines.read_text().splitlines()):
            if what in line:
                found.setdefault(line["pid"], []).append(line)
        return found


def caches_of_a_pod(folder: Path) -> dict[str, str]:
    """The variables by which the libraries in a pod find their caches, which are in `folder` here."""
    folder.mkdir()
    compiled = {name: path.replace(CACHE_DIR, str(folder), 1) for name, path in COMPILED.items()}
    return {**compiled, "HOME": str(folder), "XDG_CACHE_HOME": str(folder / "xdg")}
