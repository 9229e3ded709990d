"""The circumstances of a measurement: date, commit, CPU and versions."""

import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True)
class Circumstances:
    """What a reader needs to judge a number. `commit` ends in -dirty when files differ from it."""

    date: str
    commit: str
    num_cores: int
    cpu: str
    versions: Mapping[str, str]

    def __str__(self) -> str:
        """As a line of a report."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"{self.num_cores} cores of {self.cpu}; {versions}; commit {self.commit}; {self.date}"


def circumstances() -> Circumstances:
    """The circumstances of this process."""
    return Circumstances(
        date=datetime.now(UTC).date().isoformat(),
        commit=_commit(),
        num_cores=len(os.sched_getaffinity(0)),
        cpu=_cpu(),
        # a machine with a GPU may have no vLLM
        versions={name: version(name) for name in ("torch", "vllm") if find_spec(name)},
    )


def _commit() -> str:
    command = ("git", "describe", "--always", "--dirty", "--exclude=*")
    asked = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "unknown"


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    # an ARM processor has no such line
    return platform.machine()
