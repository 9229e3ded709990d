"""vLLM's server over an engine, and the workers of an engine of several pods.

On CPU the core of an engine of one worker is a fork of the server. vLLM starts it as a new process, which
imports torch and vLLM once more: 7 s of CPU time, half of what a small engine needs to start. On CPU there is
no device state that a fork would break. A pause ends as soon as the core has paused.
"""

import os
import signal
import socket
from argparse import Namespace
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.entry import build_and_serve
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine import PauseMode
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from grpo_runtime.process.parent_death import die_with
from grpo_runtime.serve.vllm_executor import AllAnswersExecutor

START_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
LAST_ANSWERS_SECONDS = 3
"""How long a server that ends waits for answers. Those that a dead core was asked for never come."""


def engine_config(args: Namespace) -> VllmConfig:
    """All of vLLM's configuration, which vLLM has checked against itself and the model."""
    arguments = AsyncEngineArgs.from_cli_args(args)
    config: VllmConfig = arguments.create_engine_config(
        usage_context=UsageContext.OPENAI_API_SERVER, headless=args.headless
    )
    return config


def run_workers(config: VllmConfig) -> None:
    """Run the workers of a node other than the leader until one of them ends.

    They do not end when the leader does: until its next call they see nothing of it.
    """
    MultiprocExecutor(config, monitor_workers=False).start_worker_monitor(inline=True)


async def serve_engine(
    args: Namespace, config: VllmConfig, *, listen_address: str, listener: socket.socket
) -> None:
    """Start the engine and answer on `listener` until a signal or the engine's death. Closes `listener`."""
    if args.tool_parser_plugin:
        ToolParserManager.import_tool_parser(args.tool_parser_plugin)
    if args.reasoning_parser_plugin:
        ReasoningParserManager.import_reasoning_parser(args.reasoning_parser_plugin)
    if _may_fork(config):
        # vLLM set it to spawn when it made the configuration
        os.environ[START_METHOD] = "fork"
        os.register_at_fork(after_in_child=_become_the_core(os.getpid(), listener))
    if config.parallel_config.world_size > 1:
        # vLLM refuses any other than its own in the arguments of several nodes or stages
        config.parallel_config.distributed_executor_backend = AllAnswersExecutor
    # what vLLM's run_server_worker does, with our engine client
    async with _started(args, config) as client:
        shutdown = await build_and_serve(
            client, listen_address, listener, args, timeout_graceful_shutdown=LAST_ANSWERS_SECONDS
        )
    try:
        await shutdown
    finally:
        listener.close()


class PromptlyPausingEngine(AsyncLLM):
    """vLLM's engine client. After the core has paused, vLLM's waits 20 ms more, so that the answers on their
    way are read before the pause is answered; nothing here depends on that order, and every weight sync
    would take as much longer."""

    async def pause_generation(self, *, mode: PauseMode = "abort", clear_cache: bool = True) -> None:
        """See `AsyncLLM`."""
        if clear_cache:
            await self.renderer.clear_mm_cache_async()
        await self.engine_core.pause_scheduler_async(mode=mode, clear_cache=clear_cache)


def _may_fork(config: VllmConfig) -> bool:
    """Whether the core may be a fork: on CPU, as the only worker."""
    parallel = config.parallel_config
    return (
        config.device_config.device_type == "cpu"
        and (parallel.world_size, parallel.data_parallel_size) == (1, 1)
        and parallel.distributed_executor_backend == "uni"
    )


@asynccontextmanager
async def _started(args: Namespace, config: VllmConfig) -> AsyncIterator[AsyncLLM]:
    client = PromptlyPausingEngine.from_vllm_config(
        vllm_config=config,
        usage_context=UsageContext.OPENAI_API_SERVER,
        enable_log_requests=args.enable_log_requests,
        aggregate_engine_logging=args.aggregate_engine_logging,
        disable_log_stats=args.disable_log_stats,
    )
    try:
        await client.reset_mm_cache()
        yield client
    finally:
        client.shutdown(timeout=config.shutdown_timeout)


def _become_the_core(server: int, listener: socket.socket) -> Callable[[], None]:
    """What the core does first: leave the port and the signals to `server`, and end when the server ends."""
    is_core = False

    def become_the_core() -> None:
        nonlocal is_core
        if is_core:
            # a process that the core itself forks
            return
        is_core = True
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        listener.close()
        os.environ[START_METHOD] = "spawn"
        die_with(server)

    return become_the_core
