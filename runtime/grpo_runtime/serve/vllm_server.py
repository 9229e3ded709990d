"""vLLM's server over an engine, and the workers of an engine of several pods.

On CPU the core of an engine of one worker is a fork of the server. vLLM starts it as a new process, which
imports torch and vLLM once more: 7 s of CPU time, half of what a small engine needs to start. On CPU there is
no device state that a fork would break.
"""

import os
import signal
import socket
from argparse import Namespace
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.entry import build_and_serve, run_server_worker
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from grpo_runtime.process.parent_death import die_with
from grpo_runtime.serve.vllm_executor import AllAnswersExecutor

START_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"


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
    may_fork, has_workers = _may_fork(args, config), config.parallel_config.world_size > 1
    if not (may_fork or has_workers):
        return await run_server_worker(listen_address, listener, args)
    # what vLLM's run_server_worker does, with our way of starting the core or the workers
    if may_fork:
        # vLLM set it to spawn when it made the configuration
        os.environ[START_METHOD] = "fork"
        os.register_at_fork(after_in_child=_become_the_core(os.getpid(), listener))
    if has_workers:
        if args.tool_parser_plugin:
            ToolParserManager.import_tool_parser(args.tool_parser_plugin)
        if args.reasoning_parser_plugin:
            ReasoningParserManager.import_reasoning_parser(args.reasoning_parser_plugin)
        # vLLM refuses any other than its own in the arguments of several nodes or stages
        config.parallel_config.distributed_executor_backend = AllAnswersExecutor
    async with _engine_of(args, config) as client:
        shutdown = await build_and_serve(client, listen_address, listener, args)
    try:
        await shutdown
    finally:
        listener.close()


def _may_fork(args: Namespace, config: VllmConfig) -> bool:
    """Whether the core may be a fork: on CPU, as the only worker, with nothing but vLLM's plain server."""
    parallel = config.parallel_config
    return (
        config.device_config.device_type == "cpu"
        and (parallel.world_size, parallel.data_parallel_size) == (1, 1)
        and parallel.distributed_executor_backend == "uni"
        and not (args.tool_parser_plugin or args.reasoning_parser_plugin)
    )


@asynccontextmanager
async def _engine_of(args: Namespace, config: VllmConfig) -> AsyncIterator[AsyncLLM]:
    client = AsyncLLM.from_vllm_config(
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
