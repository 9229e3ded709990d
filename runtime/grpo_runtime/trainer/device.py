"""Where a rank computes, and what follows when its GPU is out of memory.

It computes on a GPU of its own where the pod has some, else on the CPU; the code is the same. Ranks cannot
make a step again among themselves when one of them has no memory: the others wait in a collective operation
that it has left, under FSDP2 in the middle of a layer. So the attempt ends, on all of them, and the next one
resumes from the newest checkpoint.
"""

import contextlib
from collections.abc import Callable, Iterator

import torch

from grpo_api.contract.run_config import RunConfig
from grpo_api.judge.attempts import lowered_budget
from grpo_api.v1alpha1.spec import Mode, TrainerStrategy
from grpo_runtime.errors import GpuOutOfMemoryError, GpuTooSmallError, KnownError, first_line
from grpo_runtime.model.repeatable import choose_repeatable_kernels
from grpo_runtime.rollouts.interface import EngineError
from grpo_runtime.settings import TrainerSettings

_WORDS = ("cuda out of memory", "cuda error: out of memory", "cuda failure 'out of memory'")
"""Words for it of torch, of CUDA and of NCCL."""


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
    """Backend of torch.distributed: tensors on a GPU go by NCCL; those on the CPU, such as commands, by
    gloo."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


@contextlib.contextmanager
def gpu_memory_errors(settings: TrainerSettings, *, num_steps: Callable[[], int]) -> Iterator[None]:
    """Turn what torch and vLLM raise without GPU memory into an error that names fields.

    `num_steps` counts the optimizer steps of the job so far, also of earlier attempts. Raises
    GpuOutOfMemoryError, which is retried with half the budget of tokens, when there were some and the budget
    is not halved yet, and else GpuTooSmallError, which ends the job.
    """
    try:
        yield
    except Exception as error:
        cause = _lack_of_gpu_memory(error, is_colocated=settings.run_config.mode is Mode.COLOCATED)
        if cause is None:
            raise
        raise _explained(cause, settings, num_steps=num_steps()) from error


def fields_that_need_less(run_config: RunConfig) -> str:
    """What to change in the spec so that a training process needs less memory of its GPU."""
    budget, longest = run_config.micro_batch_tokens, run_config.engine.max_model_len
    fields = [f"lower trainer.microBatchTokens ({budget})"]
    if longest > budget:
        fields.append(f"lower engine.maxModelLen ({longest}), for a sequence above the budget goes alone")
    if not run_config.gradient_checkpointing:
        fields.append("set trainer.gradientCheckpointing to true")
    # an engine in a process of its own cannot be beside a policy that is spread over ranks
    can_spread = run_config.topology.world_size > 1 and not run_config.engine_has_own_process
    if run_config.strategy is TrainerStrategy.DDP and can_spread:
        fields.append("set trainer.strategy to FSDP2")
    if run_config.mode is Mode.COLOCATED:
        field = "kvCacheMemory" if run_config.engine.kv_cache_memory else "gpuMemoryUtilization"
        fields.append(f"lower engine.{field}, for the engine is on the same GPU")
    return f"{', '.join(fields[:-1])} or {fields[-1]}" if len(fields) > 1 else fields[0]


def _lack_of_gpu_memory(error: BaseException | None, *, is_colocated: bool) -> BaseException | None:
    """The first error in the chain of causes that says so: torch's own, what CUDA says to other allocators
    such as those of vLLM and NCCL, or one of these that an engine on the same GPU passes on."""
    kinds = (RuntimeError, EngineError) if is_colocated else (RuntimeError,)
    while error is not None:
        says_so = isinstance(error, kinds) and any(words in str(error).lower() for words in _WORDS)
        if says_so or isinstance(error, torch.OutOfMemoryError):
            return error
        error = error.__cause__
    return None


def _explained(error: BaseException, settings: TrainerSettings, *, num_steps: int) -> KnownError:
    run_config = settings.run_config
    tokens, fields = run_config.micro_batch_tokens, fields_that_need_less(run_config)
    cause = f"{fields}; CUDA says: {first_line(error)}"
    if settings.has_lowered_budget:
        return GpuTooSmallError(
            f"a GPU is out of memory again, although this attempt computes no more than {tokens} tokens at a "
            f"time, half as many as the spec says: {cause}"
        )
    if num_steps == 0:
        return GpuTooSmallError(f"a GPU is out of memory before the first step is done: {cause}")
    return GpuOutOfMemoryError(
        f"a GPU is out of memory after step {num_steps} with {tokens} tokens at a time; an attempt that "
        f"follows computes {lowered_budget(tokens)}; to give it more room {cause}"
    )
