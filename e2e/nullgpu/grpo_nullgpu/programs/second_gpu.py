"""What a rank on the second GPU does with weights and checkpoints, in threads of their own as in a job.

Prints whether the bytes are right. The log of the null GPU says on which devices it made contexts.
"""

import gc
import os
from collections.abc import Callable

import torch

from grpo_runtime.locked_memory import locked_memory
from grpo_runtime.process.background import in_thread
from grpo_runtime.weight_sync.source import TensorSpec
from grpo_runtime.weight_sync.stream.host_copy import device_copy, host_copy
from grpo_runtime.weight_sync.stream.memory import device_of_rank
from grpo_runtime.weight_sync.tag import TAG_BYTES

NUM_BYTES = 3 << 20


class Weights:
    """Bytes on the GPU, which is asked for nothing but copies."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def layout(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("w", tuple(self._tensor.shape), self._tensor.dtype),)

    def tensors(self):
        yield "w", self._tensor


def in_new_thread(work: Callable[[], object]) -> object:
    return in_thread(work, name="thread-of-a-job").result()


def main() -> None:
    os.environ["LOCAL_RANK"] = "1"
    torch.cuda.set_device(1)
    device = device_of_rank()
    tensor = torch.zeros(NUM_BYTES, dtype=torch.uint8, device=device.device)

    def is_copied(make: Callable[..., object], number: int) -> object:
        """Whether a copy has the newest weights, which may still be on their way to the GPU. Each has other
        bytes, so that those of the one before are seen."""
        wanted = (torch.arange(NUM_BYTES, dtype=torch.int64) + number).to(torch.uint8).pin_memory()

        def is_equal() -> bool:
            tensor.copy_(wanted, non_blocking=True)
            copy = make(Weights(tensor), device)
            stream = torch.cat([buffer.cpu() for buffer in copy.buffers()])[:-TAG_BYTES]
            return torch.equal(stream[:NUM_BYTES], wanted)

        return in_new_thread(is_equal)

    print("copied on the GPU", is_copied(device_copy, 1))
    print("copied to the host", is_copied(host_copy, 2))

    def locked() -> bool:
        memory = locked_memory(NUM_BYTES)
        memory.copy_(tensor)
        return torch.equal(memory, tensor.cpu())

    print("locked", in_new_thread(locked))
    in_new_thread(gc.collect)


if __name__ == "__main__":
    main()
