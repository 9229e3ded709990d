"""A pod in a namespace of its own that floods a port: with idle connections, half requests, and requests as
fast as they are answered."""

import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from grpo_demo.install import ensure_namespace
from grpo_scenarios.namespace import Namespace, Object

NUM_CONNECTIONS = {"idle": 300, "slow": 300, "fast": 200}
POD = "flood"


async def open_connections(host: str, port: int, seconds: float, number: Mapping[str, int]) -> None:
    """Keep so many connections of each kind open, new ones for those that are closed, and print how many
    there were. Runs in the pod, with the standard library alone."""
    import asyncio
    import collections
    import contextlib
    import json

    num_opened: collections.Counter[str] = collections.Counter()

    async def connect(kind: str, head: bytes) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        num_opened[kind] += 1
        try:
            writer.write(head)
            while await reader.read(4096):
                pass
        finally:
            writer.close()

    async def keep(kind: str, head: bytes) -> None:
        while True:
            with contextlib.suppress(OSError):
                await connect(kind, head)
            # One that the port refuses at once must not keep the others from theirs.
            await asyncio.sleep(0.01)

    sent = {
        "idle": b"",
        "slow": b"GET /progress HTTP/1.1\r\nHost: x\r\n",
        "fast": b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    }
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            for kind, head in sent.items():
                for _ in range(number[kind]):
                    group.create_task(keep(kind, head))
    print(json.dumps(num_opened))


@dataclass(frozen=True)
class Flood:
    """A pod that floods, in a namespace of its own."""

    stranger: Namespace

    @property
    def is_running(self) -> bool:
        """Whether it floods now."""
        return self._phase == "Running"

    def wait_for_end(self, *, timeout_seconds: float) -> dict[str, int]:
        """Wait until it is over; returns how many connections of each kind it opened."""
        self.stranger.wait_until(
            lambda: self._phase == "Succeeded", "the flood to end", timeout_seconds=timeout_seconds
        )
        num_opened: dict[str, int] = json.loads(self.stranger.kubectl("logs", POD))
        return num_opened

    @property
    def _phase(self) -> str:
        phase: str = self.stranger.target.get("pod", POD, "--namespace", self.stranger.name)["status"][
            "phase"
        ]
        return phase


@contextmanager
def flooded(namespace: Namespace, host: str, port: int, *, seconds: float) -> Iterator[Flood]:
    """Flood a port of a pod for `seconds`, from another namespace than `namespace`, which is removed at the
    end."""
    stranger = Namespace(target=namespace.target, name=f"{namespace.name}-stranger")
    ensure_namespace(stranger.target, stranger.name)
    try:
        stranger.apply(_pod(stranger, host, port, seconds=seconds))
        flood = Flood(stranger)
        stranger.wait_until(lambda: flood.is_running, "the flood to begin", timeout_seconds=30)
        yield flood
    finally:
        stranger.target.run_kubectl("delete", "namespace", stranger.name, "--wait=false")


def _pod(stranger: Namespace, host: str, port: int, *, seconds: float) -> Object:
    script = "\n".join(
        [
            "from __future__ import annotations",  # the types of its parameters are not imported there
            "import asyncio, json, sys",
            inspect.getsource(open_connections),
            "asyncio.run(open_connections(**json.loads(sys.argv[1])))",
        ]
    )
    arguments = {"host": host, "port": port, "seconds": seconds, "number": NUM_CONNECTIONS}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": POD},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": POD,
                    "image": stranger.target.runtime_image,
                    "command": ["python3.11", "-S", "-E", "-c", script, json.dumps(arguments)],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        },
    }
