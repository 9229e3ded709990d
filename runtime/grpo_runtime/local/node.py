"""`grpo-runtime validate --node`: whether the GPUs of this node, or of this pod, can be used, and what to do
where they cannot.

Torch is loaded last: what keeps it from seeing a GPU is said before.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_runtime.local.describe import count
from grpo_runtime.local.ports import free_ports
from grpo_runtime.memory_plan.parts import GIB

NCCL_SECONDS = 60.0
"""How long the GPUs of a node may take to find each other."""
FREE_FRACTION = 0.95
"""The share of a GPU's memory that must be free: a job plans with all of it."""
SHM_BYTES_OF_GPU = GIB
"""Bytes that /dev/shm must have for each GPU where there are several: see `sharedMemory` in a job's pods."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `fix` is what to do; empty where nothing is wrong."""

    what: str
    found: str
    fix: str = ""

    def __str__(self) -> str:
        mark = "WRONG" if self.fix else "ok"
        return f"  {self.what:12} {mark:6} {self.found}{f': {self.fix}' if self.fix else ''}"


@dataclass(frozen=True)
class Gpu:
    """A GPU as torch sees it."""

    number: int
    name: str
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class Node:
    """What is looked at, so that a test can give another."""

    devices: Path = Path("/dev")
    shared_memory: Path = Path("/dev/shm")  # noqa: S108 - its size is looked at
    which: Callable[[str], str | None] = shutil.which


def check_node(node: Node | None = None) -> tuple[list[Finding], float | None]:
    """What is found on this node, and the memory (GiB) of the smallest of its GPUs, None without one."""
    node = node or Node()
    found = [*_driver(node), _compiler(node)]
    driver, gpus = _gpus()
    found += [driver, _shared_memory(node, num_gpus=len(gpus)), *map(_memory, gpus)]
    if len(gpus) > 1:
        found += [_peer_access(len(gpus)), _nccl(len(gpus))]
    return found, min((gpu.total_bytes / GIB for gpu in gpus), default=None)


def _driver(node: Node) -> Iterator[Finding]:
    """The device files of GPUs. Without any, torch says what it misses."""
    files = sorted(node.devices.glob("nvidia*[0-9l]"))
    if not files:
        return
    closed = [file.name for file in files if not os.access(file, os.R_OK | os.W_OK)]
    fix = ""
    if closed:
        fix = f"user {os.getuid()} may not open them: let the device plugin or the driver open them to all"
    yield Finding("devices", ", ".join(closed or (file.name for file in files)), fix)


def _compiler(node: Node) -> Finding:
    found = node.which("gcc") or node.which("cc")
    if found:
        return Finding("compiler", found)
    fix = "install gcc in the image: Triton compiles its launchers when an engine starts"
    return Finding("compiler", "none", fix)


def _gpus() -> tuple[Finding, list[Gpu]]:
    """What torch says of the GPUs, and those that it can use."""
    import torch

    if torch.version.cuda is None:
        fix = "use the CUDA variant of the runtime image (README, Install it)"
        return Finding("torch", f"{torch.__version__} is built without CUDA", fix), []
    try:
        torch.cuda.init()
    except RuntimeError as error:
        why = str(error).splitlines()[0]
        fix = (
            "give the pod nvidia.com/gpu in its limits, and the runtime class nvidia where the cluster needs "
            f"it; on a machine of your own install a driver that knows CUDA {torch.version.cuda}"
        )
        return Finding("driver", f"no GPU can be used ({why})", fix), []
    gpus = []
    for number in range(torch.cuda.device_count()):
        free_bytes, total_bytes = torch.cuda.mem_get_info(number)
        name = torch.cuda.get_device_properties(number).name
        gpus.append(Gpu(number, name, free_bytes, total_bytes))
    return Finding("driver", f"{count(len(gpus), 'GPU')}, torch {torch.__version__}"), gpus


def _memory(gpu: Gpu) -> Finding:
    text = f"{gpu.name}, {gpu.free_bytes / GIB:.1f} of {gpu.total_bytes / GIB:.1f} GiB are free"
    is_free = gpu.free_bytes >= FREE_FRACTION * gpu.total_bytes
    fix = "" if is_free else "another process uses it: `nvidia-smi` on the node says which"
    return Finding(f"GPU {gpu.number}", text, fix)


def _shared_memory(node: Node, *, num_gpus: int) -> Finding:
    size = shutil.disk_usage(node.shared_memory).total
    needed = SHM_BYTES_OF_GPU * num_gpus if num_gpus > 1 else 0
    fix = "" if size >= needed else f"set podTemplate.sharedMemory to {needed // GIB}Gi or more"
    return Finding(str(node.shared_memory), f"{size / GIB:.1f} GiB", fix)


def _peer_access(num_gpus: int) -> Finding:
    import torch

    pairs = [(one, other) for one in range(num_gpus) for other in range(one)]
    apart = [pair for pair in pairs if not torch.cuda.can_device_access_peer(*pair)]
    if not apart:
        return Finding("peer access", f"between all {num_gpus} GPUs")
    # not wrong: NCCL then goes through /dev/shm
    return Finding(
        "peer access", f"not between {count(len(apart), 'pair')} of GPUs: NCCL uses /dev/shm there"
    )


def _nccl(num_gpus: int) -> Finding:
    """Let a process for each GPU add up a number with the others."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "grpo_runtime.local.nccl_sum"]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(num_gpus), str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(num_gpus)
    ]
    fix = "run it again with NCCL_DEBUG=INFO; is NCCL_SOCKET_IFNAME right, and /dev/shm large enough?"
    try:
        said = _outputs(processes)
    except subprocess.TimeoutExpired:
        return Finding("NCCL", f"the GPUs did not find each other in {NCCL_SECONDS:.0f} s", fix)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    failed = [lines for process, lines in zip(processes, said, strict=True) if process.returncode != 0]
    if failed:
        return Finding("NCCL", f"{count(len(failed), 'process')} failed ({failed[0][-1]})", fix)
    return Finding("NCCL", f"{num_gpus} processes added up a number")


def _outputs(processes: Iterable["subprocess.Popen[str]"]) -> list[Sequence[str]]:
    return [process.communicate(timeout=NCCL_SECONDS)[0].splitlines() or [""] for process in processes]
