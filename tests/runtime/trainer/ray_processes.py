"""The processes of a trainer pod whose engines are Ray's actors, as a test finds and hurts them."""

import ipaddress
import os
import sys
from pathlib import Path

from polling import wait_until
from trainer_pod import TrainerPod

ACTOR = "ray::EngineActor"
RAYLET = "raylet/raylet"


def processes_of(pod: TrainerPod) -> dict[int, str]:
    """Those of the pod's session by their process ids, with their commands: its ranks, Ray's and all else."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_text().replace("\0", " ")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        state, session = fields[0], int(fields[3])
        if session == pod.process.pid and state != "Z":
            found[int(folder.name)] = command
    return found


def listening(pod: TrainerPod) -> set[tuple[str, int]]:
    """The addresses and ports at which those of Ray listen."""
    of_ray = [pid for pid, command in processes_of(pod).items() if any(part in command for part in _OF_RAY)]
    sockets = {name for pid in of_ray for name in _sockets_of(pid)}
    found = set()
    for path in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in path.read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and f"socket:[{fields[9]}]" in sockets:
                address, port = fields[1].split(":")
                found.add((_address(address), int(port, 16)))
    return found


_OF_RAY = ("grpo-ray-", "ray::", "colocated.ray.pod_process")
"""In a command: the folder of the node, an actor, and ours."""
_LISTENS = "0A"


def _sockets_of(pid: int) -> list[str]:
    try:
        return [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return []  # it ended meanwhile


def _address(text: str) -> str:
    """As the kernel writes it: words of 32 bits, each in the order of this machine's bytes."""
    words = [int(text[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    return str(getattr(address, "ipv4_mapped", None) or address)


def pids_of(pod: TrainerPod, command: str) -> list[int]:
    return [pid for pid, found in processes_of(pod).items() if command in found]


def kill_one(pod: TrainerPod, command: str) -> None:
    pid, *_ = pids_of(pod, command)
    os.kill(pid, 9)


def require_nothing_left(pod: TrainerPod) -> None:
    wait_until(lambda: not processes_of(pod), f"no process outlives the pod: {processes_of(pod)}")
