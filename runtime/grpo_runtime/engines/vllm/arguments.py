"""Makes vLLM's arguments and environment from a RunConfig, for servers and for colocated engines.

A colocated engine takes a fraction of the whole GPU, and vLLM does not start where less is free. What the
engine takes it needs whenever it is awake, and then policy, gradient buckets and optimizer are there too. So
it starts after them, and its fraction follows from what they leave free.

Trainers, the memory plan and local mode ask here too: imports neither vLLM nor torch.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from grpo_api.contract.endpoints import RENDEZVOUS_PORT
from grpo_api.contract.run_config import RunConfig
from grpo_api.quantity import parse_quantity
from grpo_api.v1alpha1.spec import EngineSpec
from grpo_runtime.engines.interface import GpuFractions
from grpo_runtime.errors import UserError
from grpo_runtime.settings import EngineNode
from grpo_runtime.weight_sync.engine_names import name_in_vllm

CPU_KV_CACHE_BYTES = 256 * 1024 * 1024
"""Bytes of the KV cache of an engine on CPU, where vLLM would take 92 % of the machine's memory."""
CPU_MIN_BATCHED_TOKENS = 4096
GPU_FRACTIONS = GpuFractions(
    # vLLM's own default is not that of each of its releases. What is left holds new weights while they arrive
    alone=0.9,
    # what is left is for CUDA graphs, for collective operations and for weights on their way
    asleep=0.8,
    # the trainer needs as much for activations
    awake=0.4,
)
_GIB = 2**30

GUARD = "grpo_runtime.engines.serve.guard.Guard"
FOLLOW_GUARD = "grpo_runtime.engines.follow.openai_guard.FollowGuard"
SHARED_ENGINE_WORKER = "grpo_runtime.engines.vllm.cpu_workers.SharedEngineWorker"
STAGE_WORKER = "grpo_runtime.engines.vllm.cpu_workers.PipelineStageWorker"
RECEIVING_EXTENSION = "grpo_runtime.weight_sync.worker.extension.ReceivingExtension"
EXPERT_WORKER = "grpo_runtime.engines.vllm.cpu_experts.ExpertParallelWorker"


def is_cpu_build() -> bool:
    """Whether the vLLM in this image is its CPU build; vLLM itself looks at its version too."""
    return "cpu" in version("vllm")


def server_arguments(
    run_config: RunConfig,
    *,
    model_dir: Path,
    is_cpu: bool,
    host: str,
    port: int,
    node: EngineNode | None = None,
    rendezvous_port: int = RENDEZVOUS_PORT,
) -> tuple[str, ...]:
    """Arguments of the server of a rollout pod, with the model in `model_dir`, or for the workers of a pod
    that is not the first of an engine."""
    return (
        *_engine_arguments(
            run_config,
            model_dir=model_dir,
            is_cpu=is_cpu,
            gpu_memory_utilization=run_config.engine.gpu_memory_utilization or GPU_FRACTIONS.alone,
        ),
        "--host", host,
        "--port", str(port),
        "--middleware", GUARD,
        "--disable-uvicorn-access-log",
        "--disable-fastapi-docs",
        *_own_workers_arguments(run_config.engine, is_cpu=is_cpu),
        *(["--worker-extension-cls", RECEIVING_EXTENSION] if run_config.asynchronous is not None else []),
        *_node_arguments(node, rendezvous_port=rendezvous_port),
        *run_config.engine.args,
    )  # fmt: skip


def in_process_arguments(
    run_config: RunConfig, *, model_dir: Path, is_cpu: bool, gpu_memory_utilization: float
) -> tuple[str, ...]:
    """Arguments of a colocated engine: in training processes, which must be started with RANK and LOCAL_RANK,
    or in a process of its own. `gpu_memory_utilization` is its fraction of a GPU, and means nothing on
    CPU."""
    engine = run_config.engine
    # the ranks exist and have met: vLLM starts no process of its own
    launcher = (
        [] if run_config.engine_has_own_process else ["--distributed-executor-backend", "external_launcher"]
    )
    return (
        *_engine_arguments(
            run_config,
            model_dir=model_dir,
            is_cpu=is_cpu,
            gpu_memory_utilization=gpu_memory_utilization,
        ),
        *launcher,
        # nothing serves them: they would cost a tenth of the time of short completions
        "--disable-log-stats",
        # vLLM refuses the memory pool that sleep needs where it does not support it
        *(["--enable-sleep-mode"] if run_config.engine.sleep_level > 0 and not is_cpu else []),
        *(["--worker-cls", SHARED_ENGINE_WORKER] if engine.tensor_parallel_size > 1 and is_cpu else []),
        *engine.args,
    )  # fmt: skip


def followed_server_arguments(
    given: Sequence[str], *, model_dir: Path, is_cpu: bool, host: str, port: int
) -> tuple[str, ...]:
    """Arguments of a server that follows a store, on the version in `model_dir`: what a user may say
    otherwise, what the user says (`given`), and what must be so."""
    defaults = ["--dtype", _dtype_of(model_dir), "--language-model-only"]
    if is_cpu:
        defaults += ["--enforce-eager", "--kv-cache-memory-bytes", str(CPU_KV_CACHE_BYTES)]
    return (
        *defaults,
        *given,
        "--model", str(model_dir),
        "--weight-transfer-config", json.dumps({"backend": "disk"}),
        "--middleware", FOLLOW_GUARD,
        "--host", host,
        "--port", str(port),
        "--disable-uvicorn-access-log",
        "--disable-fastapi-docs",
    )  # fmt: skip


def _dtype_of(model_dir: Path) -> str:
    """The dtype of the weights: vLLM's own choice would turn float32 into another one."""
    config = json.loads((model_dir / "config.json").read_text())
    return str(config.get("dtype") or config.get("torch_dtype") or "auto")


def _engine_arguments(
    run_config: RunConfig, *, model_dir: Path, is_cpu: bool, gpu_memory_utilization: float
) -> list[str]:
    engine = run_config.engine
    arguments = [
        "--model", str(model_dir),
        # auto would turn a float32 checkpoint into bfloat16
        "--dtype", run_config.model.dtype.value,
        "--max-model-len", str(engine.max_model_len),
        # logprobs of the distribution that was sampled from, after temperature
        "--logprobs-mode", "processed_logprobs",
        "--weight-transfer-config", json.dumps({"backend": name_in_vllm(run_config.weight_sync_backend)}),
        "--tensor-parallel-size", str(engine.tensor_parallel_size),
        "--pipeline-parallel-size", str(engine.pipeline_parallel_size),
        # prompts are text: towers of pictures or sound would only take memory. Other models have none
        "--language-model-only",
    ]  # fmt: skip
    cache = CPU_KV_CACHE_BYTES if is_cpu else None
    if engine.kv_cache_memory is not None:
        cache = int(parse_quantity(engine.kv_cache_memory))
    if cache is not None:
        # of each worker, which keeps its part of the engine's cache
        arguments += ["--kv-cache-memory-bytes", str(cache // engine.num_workers)]
    if engine.max_num_seqs is not None:
        arguments += ["--max-num-seqs", str(engine.max_num_seqs)]
    if is_cpu:
        arguments += _cpu_arguments(engine.max_model_len)
    else:
        # also with a cache of a given size: vLLM refuses to start where so much is not free
        arguments += ["--gpu-memory-utilization", f"{gpu_memory_utilization:g}"]
    return arguments


def _own_workers_arguments(engine: EngineSpec, *, is_cpu: bool) -> list[str]:
    if engine.num_workers == 1:
        return []
    # for several nodes or stages vLLM takes only mp, and the server puts ours in its place; on CPU, where a
    # core can be a fork, one with a single worker is that worker
    is_one_each = is_cpu and engine.num_cores == engine.num_workers
    arguments = ["--distributed-executor-backend", "uni" if is_one_each else "mp"]
    if engine.num_cores > 1:
        arguments += ["--data-parallel-size", str(engine.num_cores)]
    if engine.expert_parallel:
        arguments += ["--enable-expert-parallel"]
    if is_cpu and engine.expert_parallel:
        arguments += ["--worker-cls", EXPERT_WORKER]
    elif is_cpu and engine.pipeline_parallel_size > 1:
        arguments += ["--worker-cls", STAGE_WORKER]
    return arguments


def _node_arguments(node: EngineNode | None, *, rendezvous_port: int) -> list[str]:
    if node is None:
        return []
    return [
        "--nnodes", str(node.num_nodes),
        "--node-rank", str(node.index),
        "--master-addr", node.master_addr,
        "--master-port", str(rendezvous_port),
        *([] if node.is_leader else ["--headless"]),
    ]  # fmt: skip


def _cpu_arguments(max_model_len: int) -> list[str]:
    return [
        "--enforce-eager",
        # a seeded request whose prefill is cut in two kills the engine on CPU; uncut, seeds make every
        # sample repeatable to the last bit
        "--no-enable-chunked-prefill",
        "--max-num-batched-tokens", str(max(CPU_MIN_BATCHED_TOKENS, max_model_len)),
    ]  # fmt: skip


def engine_environment(*, is_cpu: bool) -> dict[str, str]:
    """What must be set before torch is imported, in both modes."""
    environment = {"VLLM_NO_USAGE_STATS": "1"}
    if is_cpu:
        environment |= {
            # the first request with logprobs would compile for 18 s, and need a compiler
            "TORCHDYNAMO_DISABLE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            # engines that share cores and bind threads collapse to a twentieth of their speed
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
    return environment


SERVER_ENVIRONMENT = {
    # mounts the RL routes; the guard hides all else that it mounts
    "VLLM_SERVER_DEV_MODE": "1",
    # the model has been downloaded before
    "HF_HUB_OFFLINE": "1",
}
"""What a server needs besides, before vLLM is imported."""
IN_PROCESS_ENVIRONMENT = {
    # ranks that share an engine make the same schedule only when each runs the engine in its own process
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # else it logs every sleep and wake of every step in the trainer's log
    "VLLM_LOGGING_LEVEL": "WARNING",
}
"""What a colocated engine needs besides, before vLLM is imported."""


@dataclass(frozen=True)
class GpuMemory:
    """Bytes of one GPU, free for everybody and in all."""

    free: int
    total: int


def read_gpu_memory() -> GpuMemory:
    """Memory of the GPU of the calling thread."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return GpuMemory(free=free, total=total)


def fraction_of_gpu(run_config: RunConfig, *, memory: GpuMemory) -> float:
    """The fraction of the whole GPU that an engine takes which starts now, rounded down to thousandths.

    Raises UserError when `engine.gpuMemoryUtilization` asks for more than is free.
    """
    named = run_config.engine.gpu_memory_utilization
    most = _rounded_down(memory.free / memory.total)
    if named is None:
        fraction = GPU_FRACTIONS.asleep if run_config.engine.sleep_level > 0 else GPU_FRACTIONS.awake
        return _rounded_down(fraction * memory.free / memory.total)
    if named > most:
        total, free = memory.total / _GIB, memory.free / _GIB
        raise UserError(
            f"engine.gpuMemoryUtilization ({named:g}) asks for {named * total:.1f} GiB of a GPU of "
            f"{total:.1f} GiB, of which policy and optimizer leave {free:.1f} GiB free: lower it below "
            f"{most:g}, or remove it"
        )
    return named


def _rounded_down(fraction: float) -> float:
    return max(1, math.floor(fraction * 1000)) / 1000
