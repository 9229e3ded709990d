"""A machine with null GPUs: the environment of the processes that run on it, and what they left behind."""

import os
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from grpo_cluster.settings import cache_dir
from grpo_nullgpu.build import RUNTIME, build

PROGRAMS = Path(__file__).with_name("programs")
MIRROR = Path(__file__).with_name("mirror")
"""On PYTHONPATH it lets the CPU compute what torch, Triton and vLLM ask of null GPUs."""
_PACKAGE = Path(__file__).parent
_ROOT = Path(__file__).parents[3]
_HELPERS = [
    _ROOT / "bench",
    _ROOT / "e2e/nullgpu",
    _ROOT / "tests/runtime",
    _ROOT / "tests/runtime/trainer",
]
"""What programs import beside the product."""
_HUNG_TEST_SECONDS = 300
"""After which a test in the file of another ends its process, with the stack of every thread."""


_MOST_DEVICES, _MOST_PROCESSES = 16, 256
_ACCOUNT = struct.Struct(f"i4x{_MOST_DEVICES}q")
"""Of a process, as in src/devices.c: its id, and the bytes that it has in use on each device."""
_MORE_THAN_A_GPU_BYTES = 1 << 40


@dataclass(frozen=True)
class NullMachine:
    """Its libraries are in a folder of the cache, and what is known of one run of it in `folder`."""

    folder: Path
    num_gpus: int = 2
    has_numbers: bool = False
    """Whether the CPU computes them."""
    python_environment: Path = Path(sys.prefix)
    """Of its processes: this one, or the one with vLLM's CUDA build."""

    def environment(self, **variables: str) -> dict[str, str]:
        """That of a process on it; `variables` are those of the null GPU."""
        is_own = self.python_environment == Path(sys.prefix)
        libraries = build(self.python_environment, cache_dir() / ("nullgpu" if is_own else "nullgpu-vllm"))
        return {
            **os.environ,
            **variables_of_null_gpus(
                libraries,
                _PACKAGE,
                has_numbers=self.has_numbers,
                path=(str(self.python_environment / "bin"), os.environ["PATH"]),
                python_path=list(map(str, _HELPERS)),
            ),
            "VLLM_CACHE_ROOT": str(self.folder / "vllm"),
            "NULL_GPUS": str(self.num_gpus),
            "NULL_GPU_ACCOUNT": str(self._account),
            "NULL_GPU_LOG": str(self.folder / "log"),
            # found at once: the processes of a test are on this machine
            "NCCL_SOCKET_IFNAME": "lo",
            **variables,
        }

    def run(self, program: str, *arguments: str, seconds: float = 60.0, **variables: str) -> str:
        """What a program of the folder prints. Raises AssertionError with what it says when it fails."""
        return self._run(str(PROGRAMS / f"{program}.py"), *arguments, seconds=seconds, **variables)

    def run_module(self, module: str, *arguments: str, seconds: float = 60.0, **variables: str) -> str:
        """The same of a module."""
        return self._run("-m", module, *arguments, seconds=seconds, **variables)

    def run_tests(self, path: str, *, marks: str, chosen: str = "", **variables: str) -> str:
        """What pytest says of the tests of a file that have such marks and names; some must pass."""
        options = ("-q", "-m", marks, "-k", chosen, "-p", "no:cacheprovider")
        limit = ("-o", f"faulthandler_timeout={_HUNG_TEST_SECONDS}")
        said = self.run_module("pytest", *options, *limit, path, seconds=900.0, **variables)
        assert " passed" in said, said
        return said

    def _run(self, *arguments: str, seconds: float, **variables: str) -> str:
        command = " ".join(arguments)
        try:
            done = subprocess.run(
                [sys.executable, *arguments],
                env=self.environment(**variables),
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            so_far = b"".join(filter(None, (error.stdout, error.stderr))).decode(errors="replace")
            raise AssertionError(f"{command} has not ended in {seconds:g} s\n{so_far}") from error
        said = f"{command} ended with {done.returncode}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, said
        return done.stdout

    @contextmanager
    def full(self, device: int) -> Iterator[None]:
        """Nobody gets memory of a device meanwhile: in its account this process has all of it in use."""
        used = [0] * _MOST_DEVICES
        used[device] = _MORE_THAN_A_GPU_BYTES
        with self._account.open("r+b") as account:
            # the last place, which the processes of a job are too few for
            place = (_MOST_PROCESSES - 1) * _ACCOUNT.size
            try:
                _write_at(account, place, _ACCOUNT.pack(os.getpid(), *used))
                yield
            finally:
                _write_at(account, place, _ACCOUNT.pack(0, *[0] * _MOST_DEVICES))

    @property
    def _account(self) -> Path:
        return self.folder / "account"

    def log(self) -> list[str]:
        """A line for each context, opened handle and joined group."""
        return (self.folder / "log").read_text().splitlines()

    def num_groups_joined(self) -> Mapping[str, int]:
        """How many groups of NCCL a process has been in, by process id."""
        return Counter(line.partition(" ")[0] for line in self.log() if ": joins a group as rank" in line)

    def devices_with_contexts(self) -> Mapping[str, set[int]]:
        """By process id."""
        found: dict[str, set[int]] = {}
        for line in self.log():
            pid, _, rest = line.partition(" ")
            if rest.endswith(": context"):
                found.setdefault(pid, set()).add(int(rest.split(" device ")[1].split(":")[0]))
        return found


def variables_of_null_gpus(
    libraries: Path, package: Path, *, has_numbers: bool, path: Sequence[str], python_path: Sequence[str]
) -> dict[str, str]:
    """What every process on null GPUs has in its environment. The folders are those of the libraries and of
    this package where it runs. `path` and `python_path` are the rest of its PATH and PYTHONPATH."""
    runtime = str(libraries / RUNTIME)
    mirror = [str(package / MIRROR.name)] if has_numbers else []
    return {
        "LD_LIBRARY_PATH": str(libraries),
        "LD_PRELOAD": runtime,
        # which vLLM opens by itself
        "VLLM_NCCL_SO_PATH": runtime,
        "VLLM_CUDART_SO_PATH": runtime,
        "PATH": os.pathsep.join((str(package / "bin"), *path)),
        "PYTHONPATH": os.pathsep.join((*mirror, *python_path)),
        # a fault in a library says where Python was
        "PYTHONFAULTHANDLER": "1",
    }


def _write_at(file: BinaryIO, place: int, data: bytes) -> None:
    file.seek(place)
    file.write(data)
    file.flush()


def processes_with_torch(root: int) -> set[int]:
    """Those of a process and of all that it has started that have torch, each fork for itself."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found, left = set(), [root]
    while left:
        pid = left.pop()
        left += children.get(pid, [])
        with suppress(FileNotFoundError, ProcessLookupError):
            if "libtorch_cpu" in Path(f"/proc/{pid}/maps").read_text():
                found.add(pid)
    return found
