"""The product's delivery of weights over CUDA IPC to a worker in another process. Prints for each buffer
whether the worker reads its bytes.

ipc_delivery.py           the trainer, which starts the worker
ipc_delivery.py worker    the worker
"""

import json
import subprocess
import sys

import torch

from grpo_runtime.weight_sync.ipc import CudaHandles, IpcReceiver, IpcTransport
from grpo_runtime.weight_sync.local_connection import KEY_CHARACTERS, WorkerListener
from grpo_runtime.weight_sync.source import TensorSpec
from grpo_runtime.weight_sync.stream.host_copy import device_copy
from grpo_runtime.weight_sync.stream.memory import CudaDevice
from grpo_runtime.weight_sync.tag import TAG_BYTES

DEVICE = CudaDevice(torch.device("cuda", 0))
KEY, STALL_SECONDS = "k" * KEY_CHARACTERS, 60.0
BUFFER_BYTES, NUM_BUFFERS = 1 << 20, 5
NUM_BYTES = BUFFER_BYTES * NUM_BUFFERS
WANTED = torch.arange(NUM_BYTES, dtype=torch.int64).div(1 << 12, rounding_mode="floor").to(torch.uint8)


class Weights:
    """Bytes on the GPU."""

    def layout(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("w", (NUM_BYTES,), torch.uint8),)

    def tensors(self):
        yield "w", WANTED.to(DEVICE.device)


def trainer() -> None:
    transport = IpcTransport(DEVICE, CudaHandles(DEVICE), num_workers=1)
    other = subprocess.Popen([sys.executable, __file__, "worker"], stdin=subprocess.PIPE, text=True)
    with WorkerListener(num_workers=1, key=KEY) as listener:
        print(json.dumps(listener.init.model_dump() | transport.open()), file=other.stdin, flush=True)
        workers = listener.accept(stall_seconds=STALL_SECONDS)
        copy = device_copy(Weights(), DEVICE, buffer_bytes=BUFFER_BYTES)
        transport.deliver(copy, workers, stall_seconds=STALL_SECONDS)
    transport.close()
    assert other.wait() == 0


def worker() -> None:
    receiver = IpcReceiver(DEVICE, CudaHandles(DEVICE), worker=0)
    receiver.init(json.loads(sys.stdin.readline()))
    memory = receiver.memory(NUM_BYTES + TAG_BYTES, connection=KEY, stall_seconds=STALL_SECONDS)
    received = receiver.receive(memory.split(BUFFER_BYTES), stall_seconds=STALL_SECONDS)
    for number, buffer in enumerate(received):
        wanted = WANTED[number * BUFFER_BYTES :][:BUFFER_BYTES]
        # the last buffer has the tag, which is not computed
        print("arrived", torch.equal(buffer[: len(wanted)].cpu(), wanted), flush=True)


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["worker"] else trainer()
