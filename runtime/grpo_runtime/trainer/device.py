"""Where a rank computes: on a GPU of its own where the pod has some, else on the CPU. The code is the
same."""

import torch

from grpo_runtime.model.repeatable import choose_repeatable_kernels


def training_device(*, local_rank: int) -> torch.device:
    """The device of the rank `local_rank` of its pod, made the process's default GPU if it is one."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    choose_repeatable_kernels()
    device = torch.device("cuda", local_rank)
    use_device(device)
    return device


def use_device(device: torch.device) -> None:
    """Make a GPU the default of the calling thread. A thread begins with the first GPU, whichever its process
    uses."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def release_cached_memory(device: torch.device) -> None:
    """Give back what torch keeps of a GPU for later, so that an engine on it can take it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def collective_backend(device: torch.device) -> str:
    """For torch.distributed: tensors on a GPU go by NCCL; those on the CPU, such as commands, by gloo."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
