"""A rank asks for its engine, of a pod's process and an actor that are this test's own."""

import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import Any

import pytest

from grpo_api.contract.exit_codes import ExitCode
from grpo_runtime.engines.colocated.child_messages import receive, send
from grpo_runtime.engines.colocated.ray.cluster import RayLostError
from grpo_runtime.engines.colocated.ray.node_folder import ENGINES_SOCKET
from grpo_runtime.engines.colocated.ray.rank_end import RayActorProcess, actor_of
from grpo_runtime.process.failure import describe_failure
from grpo_runtime.rollouts.interface import EngineGoneError

PodsAnswer = Callable[[Connection, dict[str, Any]], None]
SECONDS = 20.0


@contextmanager
def pod_that(answers: PodsAnswer, *, folder: Path) -> Iterator[None]:
    """A pod's process that has one connection and one request."""

    def serve() -> None:
        with listener.accept() as rank:
            answers(rank, receive(rank).header)

    with Listener(str(folder / ENGINES_SOCKET)) as listener, ThreadPoolExecutor(1) as threads:
        served = threads.submit(serve)
        yield
        served.result(SECONDS)


def start_actor(folder: Path) -> None:
    actor_of(3, folder=folder, environment={"A": "b" * 2**20})()


def says_that_it_ended(rank: Connection, request: dict[str, Any]) -> None:
    send(rank, {"ended": "it was shot"})


def ends_itself(rank: Connection, request: dict[str, Any]) -> None:
    pass


def has_an_actor_that_dies_before_its_token(rank: Connection, request: dict[str, Any]) -> None:
    with socket.socket(socket.AF_UNIX) as actor:
        actor.connect(request["path"])
    says_that_it_ended(rank, request)


def has_an_actor_that_is_known_and_dies(rank: Connection, request: dict[str, Any]) -> None:
    """Its process is there until it is reaped."""
    with known_and_dead(request):
        says_that_it_ended(rank, request)
        wait([rank], SECONDS)


def has_an_actor_that_is_known_and_gone(rank: Connection, request: dict[str, Any]) -> None:
    with known_and_dead(request) as actor:
        actor.wait(SECONDS)
    says_that_it_ended(rank, request)


def known_and_dead(request: dict[str, Any]) -> "subprocess.Popen[bytes]":
    actor = subprocess.Popen(
        [sys.executable, "-c", _KNOWN_AND_DIES, request["path"], request["token"]], process_group=0
    )
    os.waitid(os.P_PID, actor.pid, os.WEXITED | os.WNOWAIT)
    return actor


_KNOWN_AND_DIES = """
import socket, sys
actor = socket.socket(socket.AF_UNIX)
actor.connect(sys.argv[1])
actor.sendall(sys.argv[2].encode())
"""


@pytest.mark.parametrize(
    "answers",
    [
        says_that_it_ended,
        has_an_actor_that_dies_before_its_token,
        has_an_actor_that_is_known_and_dies,
        has_an_actor_that_is_known_and_gone,
    ],
)
def test_an_actor_that_dies_while_it_starts_is_a_lost_engine_and_not_a_lost_ray(
    answers: PodsAnswer, tmp_path: Path
) -> None:
    before = open_descriptors()
    with (
        pod_that(answers, folder=tmp_path),
        pytest.raises(EngineGoneError, match=r"its Ray actor ended.*: it was shot"),
    ):
        start_actor(tmp_path)
    assert open_descriptors() <= before
    assert [path.name for path in tmp_path.iterdir()] == []


def test_a_pods_process_that_ends_while_an_actor_starts_ends_the_attempt(tmp_path: Path) -> None:
    before = open_descriptors()
    with pod_that(ends_itself, folder=tmp_path), pytest.raises(RayLostError, match="Ray has ended") as caught:
        start_actor(tmp_path)
    assert describe_failure(caught.value).exit_code == ExitCode.TRANSIENT
    assert open_descriptors() <= before


def open_descriptors() -> Counter[str]:
    """Sockets and processes that this process holds, of which those of earlier tests may go at any time."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(path.readlink()))
    return Counter(name for name in found if name.startswith(("socket:", "anon_inode:[pidfd]")))


_LEAVES_ONE_BEHIND = """
import subprocess, sys
left = subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL)
print(left.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("actor_is_reaped", [False, True])
def test_what_an_engine_has_started_ends_also_when_its_actor_has_ended_by_itself(
    actor_is_reaped: bool,
) -> None:
    actor = subprocess.Popen(
        [sys.executable, "-c", _LEAVES_ONE_BEHIND],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,
    )
    assert actor.stdin is not None and actor.stdout is not None
    left = os.pidfd_open(int(actor.stdout.readline()))
    pod, of_pod = Pipe()
    try:
        process = RayActorProcess(actor.pid, pod)
        send(of_pod, {"ended": "it was shot"})
        actor.stdin.close()
        if actor_is_reaped:
            actor.wait(SECONDS)
        assert process.end(seconds=SECONDS) == "its Ray actor ended: it was shot"
        actor.wait(SECONDS)
        assert ends(left)
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(left, signal.SIGKILL)
        os.close(left)
        actor.stdout.close()
        of_pod.close()


def ends(pidfd: int) -> bool:
    """Within the time of a test."""
    return bool(wait([pidfd], SECONDS))


def test_a_process_that_has_ended_can_be_killed_and_ended_more_than_once() -> None:
    pod, of_pod = Pipe()
    with of_pod, subprocess.Popen(["true"], process_group=0) as ended:
        process = RayActorProcess(ended.pid, pod)
        ended.wait(SECONDS)
        send(of_pod, {"ended": "by itself"})
        process.kill()
        assert process.end(seconds=SECONDS) == "its Ray actor ended: by itself"
        process.kill()
        assert process.has_ended and not process.is_stopped
