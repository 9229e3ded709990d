"""Handles of CUDA IPC between two processes: what is read, and what is left in use after weight syncs.

ipc.py NUM_SYNCS [killed]   the receiver is killed at the end instead of letting go
"""

import gc
import json
import subprocess
import sys

import torch

from grpo_runtime.weight_sync.ipc import CudaHandles
from grpo_runtime.weight_sync.stream.memory import CudaDevice

DEVICE = CudaDevice(torch.device("cuda", 0))
SLOT_BYTES = 64 << 20


def receiver() -> None:
    """Opens each handle that it is given, says what the memory begins with, and lets go of it."""
    handles = CudaHandles(DEVICE)
    torch.empty(1, device=DEVICE.device)
    for line in sys.stdin:
        memory = handles.open(json.loads(line))
        print(memory[:4].cpu().tolist(), flush=True)
        del memory


def main(num_syncs: int, *, is_killed: bool) -> None:
    handles = CudaHandles(DEVICE)
    torch.cuda.init()
    before = torch.cuda.memory_allocated()
    slots = [handles.allocate(SLOT_BYTES) for _ in range(2)]
    for number, slot in enumerate(slots):
        slot[:4].copy_(torch.tensor([number] * 4, dtype=torch.uint8))
    exported = [handles.export(slot) for slot in slots]
    other = subprocess.Popen(
        [sys.executable, __file__, "receiver"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    for _ in range(num_syncs):
        for handle in exported:
            other.stdin.write(json.dumps(handle) + "\n")
            other.stdin.flush()
            print("read", other.stdout.readline().strip())
    if is_killed:
        other.kill()
    for handle in exported:
        handles.release(handle)
    del slots, slot
    gc.collect()
    torch.cuda.ipc_collect()
    print("left", torch.cuda.memory_allocated() - before)
    torch.cuda.empty_cache()
    other.stdin.close()
    other.wait()


if __name__ == "__main__":
    if sys.argv[1] == "receiver":
        receiver()
    else:
        main(int(sys.argv[1]), is_killed="killed" in sys.argv[2:])
