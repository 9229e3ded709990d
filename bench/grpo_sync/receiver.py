"""A process that receives weights as a worker of vLLM does, without vLLM.

Arguments: the file descriptor of its socket, and the process id of its parent. A line of JSON asks for a
verb, and a line answers when it is done: `{"error": ..., "result": ...}`.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

import torch

from grpo_runtime.process.lifetime import die_with
from grpo_runtime.weight_sync.interface import Receiver, ReceiverSettings
from grpo_runtime.weight_sync.registry import find_backend
from grpo_sync.broadcast import broadcast, find_store, join
from grpo_sync.model_memory import ModelMemory
from grpo_sync.weights import DTYPES


class ReceiverProcess:
    """What the verbs do. The five verbs of weight transfer go to the receiver of a backend."""

    def __init__(self, say: Callable[[Mapping[str, Any]], None]) -> None:
        self._say = say
        self._memory = ModelMemory(0, num_tensors=0)
        self._receiver: Receiver | None = None
        self._groups: dict[int, Any] = {}

    def memory(self, num_bytes: int, num_tensors: int, device: str = "cpu") -> None:
        """Make room for a model."""
        # the old one goes first: both together may be too much
        self._memory = ModelMemory(0, num_tensors=0)
        self._memory = ModelMemory(num_bytes, num_tensors=num_tensors, device=device)

    def make(self, backend: str, layout: Mapping[str, list[int]], device: str = "cpu") -> None:
        """Make a receiver of the backend, for a model of this layout on the device."""
        shapes = {name: tuple(shape) for name, shape in layout.items()}
        settings = ReceiverSettings(layout=shapes, device=torch.device(device))
        self._receiver = find_backend(backend).make_receiver(settings)

    def init(self, info: Mapping[str, Any]) -> None:
        """Connect to a sender."""
        self._made().init(info)

    def start(self) -> None:
        """Open an update."""
        self._made().start()

    def update(self, info: Mapping[str, Any]) -> None:
        """Receive and check."""
        self._made().update(info)

    def finish(self) -> Mapping[str, Any]:
        """Load what was received. Returns how long the copy into the model took."""
        weights = self._made().take()
        assert weights is not None, "the weights are in the model already"
        began = time.monotonic()
        self._memory.load(weights)
        return {"load_seconds": time.monotonic() - began}

    def ends(self) -> Mapping[str, Any]:
        """What was loaded, in short."""
        return {"ends": self._memory.ends()}

    def shutdown(self) -> None:
        """Let go of the sender."""
        if self._receiver is not None:
            self._receiver.shutdown()
            self._receiver = None

    def join(self, port: int, rank: int, size: int) -> None:
        """Join a group for raw broadcasts."""
        self._groups[size] = join(find_store(port), rank=rank, size=size)

    def broadcast(self, size: int, num_bytes: int) -> Mapping[str, Any]:
        """Receive a raw broadcast into the memory of the model. Returns when it was over, on the clock that
        all processes of a machine share."""
        self._say({"error": "", "result": {"is_ready": True}})
        broadcast(self._groups[size], self._memory.flat[:num_bytes])
        return {"ended": time.monotonic()}

    def parameter(self, size: int, dtype: str, shape: list[int]) -> None:
        """Receive one parameter, as the naive way does."""
        tensor = torch.empty(shape, dtype=DTYPES[dtype])
        broadcast(self._groups[size], tensor.view(-1).view(torch.uint8))

    def _made(self) -> Receiver:
        if self._receiver is None:
            raise RuntimeError("no receiver is made")
        return self._receiver


def _serve(lines: IO[str], answers: IO[str]) -> None:
    def say(answer: Mapping[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    process = ReceiverProcess(say)
    for line in lines:
        request = json.loads(line)
        try:
            result = getattr(process, request["verb"])(**request["arguments"])
        except Exception as error:
            # the sender decides what an error means; this process takes the next verb, as an engine does
            say({"error": f"{type(error).__name__}: {error}", "result": {}})
        else:
            say({"error": "", "result": result or {}})


if __name__ == "__main__":
    die_with(int(sys.argv[2]))
    torch.set_num_threads(1)
    with socket.socket(fileno=int(sys.argv[1])) as connection, connection.makefile("rw") as stream:
        _serve(stream, stream)
    # gloo's threads may wait for a sender that is gone
    os._exit(0)
