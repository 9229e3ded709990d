"""Pods that flood a port with connections: idle ones, half requests and whole ones, as fast as they can."""

import inspect
import json
from dataclasses import dataclass

from grpo_scenarios.bare_pod import NAME_LABEL, bare_pod
from grpo_scenarios.namespace import Namespace

NUM_PODS = 2
NAME = "flood"


def open_connections(host: str, port: int, seconds: float) -> None:
    """Open connections to a port without waiting for it, and print how many of each kind there were. Runs in
    a pod, with the standard library alone.

    Some four thousand are open at a time.
    """
    import collections
    import contextlib
    import json
    import resource
    import socket
    import time

    half = b"GET /progress HTTP/1.1\r\nHost: x\r\n"
    kinds = {"idle": b"", "half": half, "whole": half + b"\r\n"}
    size, sent_after, closed_after = 60, 20, 60
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * size * closed_after,) * 2)
    num_opened = dict.fromkeys(kinds, 0)
    batches: collections.deque[list[socket.socket]] = collections.deque()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        batches.append([socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK) for _ in range(size)])
        for connection in batches[-1]:
            connection.connect_ex((host, port))
        if len(batches) > sent_after:
            for number, connection in enumerate(batches[-sent_after]):
                kind = list(kinds)[number % len(kinds)]
                with contextlib.suppress(OSError):  # not connected yet, or closed by the other side
                    connection.getpeername()
                    connection.send(kinds[kind])
                    num_opened[kind] += 1
        if len(batches) > closed_after:
            for connection in batches.popleft():
                connection.close()
    print(json.dumps(num_opened))


@dataclass(frozen=True)
class Flood:
    """The pods that flood, in a namespace."""

    namespace: Namespace

    @property
    def is_running(self) -> bool:
        """Whether all of them flood now."""
        return self._phases == ["Running"] * NUM_PODS

    def wait_for_end(self, *, timeout_seconds: float) -> list[dict[str, int]]:
        """Wait until it is over; returns how many connections of each kind each pod opened."""
        self.namespace.wait_until(
            lambda: self._phases == ["Succeeded"] * NUM_PODS,
            "the flood to end",
            timeout_seconds=timeout_seconds,
        )
        return [json.loads(self.namespace.kubectl("logs", f"{NAME}-{number}")) for number in range(NUM_PODS)]

    @property
    def _phases(self) -> list[str]:
        return [pod["status"]["phase"] for pod in self.namespace.pods(f"{NAME_LABEL} in ({_names()})")]


def start_flood(namespace: Namespace, *, host: str, port: int, seconds: float) -> Flood:
    """Flood a port for `seconds`, from pods in `namespace`."""
    script = "\n".join(
        [
            "import json, sys",
            inspect.getsource(open_connections),
            "open_connections(**json.loads(sys.argv[1]))",
        ]
    )
    arguments = json.dumps({"host": host, "port": port, "seconds": seconds})
    command = ["python3.11", "-S", "-E", "-c", script, arguments]
    for number in range(NUM_PODS):
        namespace.apply(bare_pod(f"{NAME}-{number}", command, image=namespace.target.runtime_image))
    flood = Flood(namespace)
    namespace.wait_until(lambda: flood.is_running, "the flood to begin", timeout_seconds=30)
    return flood


def _names() -> str:
    return ", ".join(f"{NAME}-{number}" for number in range(NUM_PODS))
