"""The model of a vLLM engine on null GPUs, by the CPU.

vLLM's own kernels (attention, norms, activations) compute nothing there. So the hidden states that the model
has returned are replaced by those that transformers computes of the same tokens, with the weights that are in
the engine's memory at that time. All before and after that is vLLM's: batches, positions, logits, sampling.
The KV cache is not read, so nothing is seen of what it holds.

With NULL_GPU_ENGINES, a file, each engine writes what it computes with, whenever that has changed, and what
is in use before and after it sleeps and wakes up; `grpo_nullgpu.jobs` reads it. With NULL_GPU_KILL_IN, a
file, the engine that finds it at the beginning of an update removes it, and is killed in the update.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from cpu_mirror import on_cpu
from grpo_nullgpu.digest import digest_of

_DEFAULT_POOL = (0, 0)


def install_in_runner() -> None:
    """Let every model runner replace what its model returns."""
    from vllm.v1.sample.ops import topk_topp_sampler
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    # its kernel of Triton asks a loop's number for its type, which the interpreter has none of
    topk_topp_sampler.HAS_TRITON = False
    GPUModelRunner.execute_model = _replacing(GPUModelRunner.execute_model)


def install_in_cuda_wrapper() -> None:
    """Let vLLM call the null GPU's runtime, which VLLM_CUDART_SO_PATH names, and not NVIDIA's: torch has
    loaded that, too, but calls none of it."""
    from vllm.distributed.device_communicators import cuda_wrapper

    cuda_wrapper.find_loaded_library = lambda name: None


def install_in_flashinfer() -> None:
    """The same for FlashInfer, which has taken NVIDIA's library when it was imported."""
    from flashinfer.comm import cuda_ipc

    cuda_ipc.cudart = cuda_ipc.CudaRTLibrary(os.environ["VLLM_CUDART_SO_PATH"])


def install_in_groups() -> None:
    """Let workers gather by operators that come here one by one, and not by one of vLLM's own, within which
    none does."""
    from vllm.distributed.parallel_state import GroupCoordinator

    def all_gather(group: Any, part: torch.Tensor, dim: int = -1) -> torch.Tensor:
        whole: torch.Tensor = part if group.world_size == 1 else group._all_gather_out_place(part, dim)
        return whole

    GroupCoordinator.all_gather = all_gather


def install_in_worker() -> None:
    """Let every worker tell of its memory, and end where that is asked for."""
    from vllm.v1.worker.gpu_worker import Worker

    Worker.sleep = _telling_of_sleep(Worker.sleep)
    Worker.wake_up = _telling_of_waking(Worker.wake_up)
    Worker.update_weights = _killed_where_asked(Worker.update_weights)


def _replacing(execute: Callable[..., Any]) -> Callable[..., Any]:
    def execute_model(runner: Any, *args: Any, **kwargs: Any) -> Any:
        found = execute(runner, *args, **kwargs)
        state = runner.execute_model_state
        if state is not None and state.hidden_states is not None and not kwargs.get("dummy_run"):
            if not hasattr(runner, "model_on_cpu"):
                runner.model_on_cpu = ModelOnCpu(runner)
            runner.model_on_cpu.replace(state.hidden_states, state.input_batch)
        return found

    return execute_model


def _telling_of_sleep(sleep: Callable[..., None]) -> Callable[..., None]:
    def sleep_and_tell(worker: Any, level: int = 1) -> None:
        before = _used_bytes()
        sleep(worker, level)
        _tell(level=level, awake_bytes=before, asleep_bytes=_used_bytes())

    return sleep_and_tell


def _telling_of_waking(wake_up: Callable[..., None]) -> Callable[..., None]:
    def wake_up_and_tell(worker: Any, tags: list[str] | None = None) -> None:
        before, kept = _used_bytes(), _kept_bytes()
        wake_up(worker, tags)
        _tell(woken=tags, before_bytes=before, after_bytes=_used_bytes(), kept_bytes=kept)

    return wake_up_and_tell


def _killed_where_asked(update: Callable[..., None]) -> Callable[..., None]:
    def update_weights(worker: Any, *args: Any, **kwargs: Any) -> None:
        asked = os.environ.get("NULL_GPU_KILL_IN")
        if asked and Path(asked).exists():
            Path(asked).unlink()
            _tell(killed=True)
            os.environ["NULL_GPU_KILL"] = "1"  # with the first bytes that it waits for
        update(worker, *args, **kwargs)

    return update_weights


class ModelOnCpu:
    """The model of a runner: its memory, and the code of transformers."""

    def __init__(self, runner: Any) -> None:
        from transformers import AutoModelForCausalLM

        self._runner = runner
        config, dtype = runner.model_config.hf_config, runner.model_config.dtype
        # its own weights are drawn, and not used
        with torch.random.fork_rng(devices=()):
            self._model = AutoModelForCausalLM.from_config(config, dtype=dtype).base_model.eval()
        self._last_digest = ""

    def replace(self, hidden_states: torch.Tensor, batch: Any) -> None:
        """Write the hidden states of all tokens of a batch."""
        torch.cuda.current_stream().synchronize()
        model = self._runner.get_model()
        weights = dict(unfused(model))
        self._tell_of(weights, model=model)
        tokens, rows = on_cpu(self._runner.req_states.all_token_ids.gpu), on_cpu(hidden_states)
        lengths = on_cpu(batch.seq_lens).tolist()
        for index in range(batch.num_reqs):
            begin, end = map(int, batch.query_start_loc_np[index : index + 2])
            token_ids = tokens[int(batch.idx_mapping_np[index]), : lengths[index]].long()
            # the newest of the sequence: those before them were computed in earlier steps
            rows[begin:end] = self._hidden_states(weights, token_ids)[begin - end :]

    def _hidden_states(self, weights: Mapping[str, torch.Tensor], token_ids: torch.Tensor) -> torch.Tensor:
        """[T, H], before the head."""
        prefix = f"{self._model.base_model_prefix}."
        own = {
            name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)
        }
        inputs = {"input_ids": token_ids[None], "use_cache": False}
        found: torch.Tensor = torch.func.functional_call(self._model, own, kwargs=inputs).last_hidden_state
        return found[0]

    def _tell_of(self, weights: Mapping[str, torch.Tensor], *, model: Any) -> None:
        digest = digest_of(weights)
        if digest != self._last_digest:
            addresses = [parameter.data_ptr() for _, parameter in sorted(model.named_parameters())]
            _tell(weights=digest, addresses=hashlib.sha256(repr(addresses).encode()).hexdigest())
        self._last_digest = digest


def unfused(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights of a model of vLLM by their names in transformers, whole, as CPU tensors.

    With tensor parallelism all workers of an engine call this at the same time, and give each other their
    parts.
    """
    from vllm.model_executor.layers import linear
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    for prefix, module in model.named_modules():
        for kind, parameter in module.named_parameters(recurse=False):
            tensor, name = parameter.data, f"{prefix}.{kind}"
            if isinstance(module, linear.QKVParallelLinear):
                heads = (module.num_heads, module.num_kv_heads, module.num_kv_heads)
                parts = tensor.split([number * module.head_size for number in heads])
                for own, part in zip(("q_proj", "k_proj", "v_proj"), parts, strict=True):
                    yield name.replace("qkv_proj", own), _whole(part, dim=0)
            elif isinstance(module, linear.MergedColumnParallelLinear):
                for own, part in zip(("gate_proj", "up_proj"), tensor.chunk(2), strict=True):
                    yield name.replace("gate_up_proj", own), _whole(part, dim=0)
            elif isinstance(module, linear.RowParallelLinear) and kind == "weight":
                yield name, _whole(tensor, dim=1)
            elif isinstance(module, VocabParallelEmbedding):
                yield name, _whole(tensor, dim=0)[: module.org_vocab_size]
            else:
                yield name, on_cpu(tensor)


def _whole(part: torch.Tensor, *, dim: int) -> torch.Tensor:
    from vllm.distributed import get_tp_group

    group = get_tp_group()
    if group.world_size == 1:
        found: torch.Tensor = on_cpu(part)
        return found
    whole = group.all_gather(part.contiguous(), dim)
    # a copy, as its memory is given back
    return torch.clone(on_cpu(whole))


def _used_bytes() -> int:
    """Of this GPU, by all processes."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free


def _kept_bytes() -> int:
    """What this process uses nothing of, and could give back: whole segments. Captured graphs keep the pool
    that they were captured in."""
    segments = torch.cuda.memory_snapshot()
    unused = [each for each in segments if each["active_size"] == 0]
    return sum(each["total_size"] for each in unused if tuple(each["segment_pool_id"]) == _DEFAULT_POOL)


def _tell(**said: object) -> None:
    if path := os.environ.get("NULL_GPU_ENGINES"):
        with Path(path).open("a") as file:
            file.write(f"{json.dumps({'pid': os.getpid(), **said})}\n")
