"""The processes of a trainer pod whose engines are Ray's actors, as a test finds and hurts them."""

import os
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


def pids_of(pod: TrainerPod, command: str) -> list[int]:
    return [pid for pid, found in processes_of(pod).items() if command in found]


def kill_one(pod: TrainerPod, command: str) -> None:
    pid, *_ = pids_of(pod, command)
    os.kill(pid, 9)


def require_nothing_left(pod: TrainerPod) -> None:
    wait_until(lambda: not processes_of(pod), f"no process outlives the pod: {processes_of(pod)}")
