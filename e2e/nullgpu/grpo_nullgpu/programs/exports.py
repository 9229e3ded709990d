"""Handles of CUDA IPC made one after the other, while another thread takes fresh memory. At each torch looks
there whether it may drop the file in which it counts handles."""

import threading

import torch

from grpo_runtime.weight_sync.ipc import CudaHandles
from grpo_runtime.weight_sync.stream.memory import CudaDevice

NUM_EXPORTS = 3000


@torch.jit.script
def take_fresh_memory(num_parts: int) -> int:
    """As a backward pass does: without Python's lock between one and the next."""
    parts = [torch.empty([0])]
    for _ in range(num_parts):
        parts.append(torch.empty([12 << 20], dtype=torch.uint8, device="cuda"))
    return len(parts)


def compute(is_done: threading.Event) -> None:
    while not is_done.is_set():
        take_fresh_memory(100)
        torch.cuda.empty_cache()


def main() -> None:
    handles = CudaHandles(CudaDevice(torch.device("cuda", 0)))
    handles.prepare_exports()
    is_done = threading.Event()
    other = threading.Thread(target=compute, args=(is_done,))
    other.start()
    for _ in range(NUM_EXPORTS):
        memory = handles.allocate(512)
        handles.release(handles.export(memory))
        del memory
    is_done.set()
    other.join()
    print("made", NUM_EXPORTS)


if __name__ == "__main__":
    main()
