"""From a RunConfig to vLLM's command line and environment. Pure; the reasons are in the comments."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grpo_api.contract.run_config import RunConfig
from grpo_api.quantity import parse_quantity

WEIGHT_SYNC_BACKEND = "gloo"
CPU_KV_CACHE_BYTES = 256 * 1024 * 1024
"""On CPU vLLM would take 92 % of the machine's memory for the KV cache."""
CPU_MIN_BATCHED_TOKENS = 4096
GUARD = "grpo_runtime.serve.guard.Guard"


@dataclass(frozen=True)
class Command:
    """How vLLM is started: its arguments, and variables that must be set before it is imported."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]


def vllm_command(run: RunConfig, *, model_dir: Path, is_cpu: bool, host: str, port: int) -> Command:
    """The command for one engine of the run, with the model in `model_dir`."""
    engine = run.engine
    arguments = [
        "--model", str(model_dir),
        "--host", host,
        "--port", str(port),
        # auto would turn a float32 checkpoint into bfloat16
        "--dtype", run.model.dtype.value,
        "--max-model-len", str(engine.max_model_len),
        # token ids in and out
        "--enable-scale-out",
        # logprobs of the distribution that was sampled from, after temperature
        "--logprobs-mode", "processed_logprobs",
        "--weight-transfer-config", json.dumps({"backend": WEIGHT_SYNC_BACKEND}),
        "--middleware", GUARD,
        "--disable-uvicorn-access-log",
        "--disable-fastapi-docs",
    ]  # fmt: skip
    if engine.kv_cache_memory is not None:
        arguments += ["--kv-cache-memory-bytes", str(int(parse_quantity(engine.kv_cache_memory)))]
    elif is_cpu:
        arguments += ["--kv-cache-memory-bytes", str(CPU_KV_CACHE_BYTES)]
    if is_cpu:
        arguments += _cpu_arguments(engine.max_model_len)
    return Command(
        arguments=tuple(arguments), environment=_COMMON_ENVIRONMENT | (_CPU_ENVIRONMENT if is_cpu else {})
    )


def _cpu_arguments(max_model_len: int) -> list[str]:
    return [
        "--enforce-eager",
        # a seeded request whose prefill is cut in two kills the engine on CPU; uncut, seeds make every
        # sample repeatable to the last bit
        "--no-enable-chunked-prefill",
        "--max-num-batched-tokens", str(max(CPU_MIN_BATCHED_TOKENS, max_model_len)),
    ]  # fmt: skip


_COMMON_ENVIRONMENT = {
    # mounts the RL routes; the guard hides all else that it mounts
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
_CPU_ENVIRONMENT = {
    # the first request with logprobs would compile for 18 s, and need a compiler
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # engines that share cores and bind threads collapse to a twentieth of their speed
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
