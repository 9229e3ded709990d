"""vLLM's server over an engine whose core, on CPU, is a fork of it.

vLLM starts the core as a fresh process, which imports torch and vLLM once more: 7 s of a core, half of what a
small engine needs to start. A CPU has no device state that a fork would spoil.
"""

import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.entry import build_and_serve
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM

from grpo_runtime.parent_death import die_with

START_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"


def engine_config(arguments: AsyncEngineArgs) -> VllmConfig:
    """All of vLLM's configuration, checked by vLLM against itself and against the model."""
    return arguments.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)


async def serve_engine(
    arguments: AsyncEngineArgs, config: VllmConfig, *, listen_address: str, listener: socket.socket, args: Any
) -> None:
    """Start the engine and answer on `listener` until a signal or the engine's death. Closes `listener`."""
    async with _engine(arguments, config, listener=listener) as client:
        shutdown = await build_and_serve(client, listen_address, listener, args)
    try:
        await shutdown
    finally:
        listener.close()


@asynccontextmanager
async def _engine(
    arguments: AsyncEngineArgs, config: VllmConfig, *, listener: socket.socket
) -> AsyncIterator[AsyncLLM]:
    if _may_fork(config):
        # making the configuration has set it to spawn
        os.environ[START_METHOD] = "fork"
        server = os.getpid()
        os.register_at_fork(after_in_child=lambda: _become_the_core(server, listener))
    client = AsyncLLM.from_vllm_config(
        vllm_config=config,
        usage_context=UsageContext.OPENAI_API_SERVER,
        enable_log_requests=arguments.enable_log_requests,
        aggregate_engine_logging=arguments.aggregate_engine_logging,
        disable_log_stats=arguments.disable_log_stats,
    )
    try:
        yield client
    finally:
        client.shutdown(timeout=config.shutdown_timeout)


def _may_fork(config: VllmConfig) -> bool:
    """On CPU with one worker, which is then the core itself: a core's own workers bind threads to cores."""
    return config.device_config.device_type == "cpu" and config.parallel_config.world_size == 1


def _become_the_core(server: int, listener: socket.socket) -> None:
    """The port is the server's, and so are the signals that its loop waits for; the core ends with it."""
    signal.set_wakeup_fd(-1)
    listener.close()
    die_with(server)
