"""vLLM's server over an engine, for a rollout pod and for one that follows, and the workers of an engine of
several pods.

On CPU a core that is its only worker is a fork of the server. vLLM starts it as a new process, which
imports torch and vLLM once more: 7 s of CPU time, half of what a small engine needs to start. On CPU there is
no device state that a fork would break.
"""

import asyncio
import logging
import os
import signal
import socket
from argparse import Namespace
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, cast

from vllm.config import VllmConfig
from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.entry import build_and_serve
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.entrypoints.launchers.launcher import setup_server
from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
from vllm.exceptions import VLLMClientError
from vllm.inputs import tokens_input
from vllm.outputs import RequestOutput
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.usage.usage_lib import UsageContext
from vllm.utils import random_uuid
from vllm.v1.engine import PauseMode
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from grpo_runtime.engines.serve.http import BadRequestError
from grpo_runtime.engines.vllm.arguments import is_cpu_build
from grpo_runtime.engines.vllm.completions import flat_logprobs, rollout_of, vllm_parameters
from grpo_runtime.engines.vllm.configuration import checked, parse_arguments, register_model
from grpo_runtime.engines.vllm.executor import AllAnswersExecutor, error_to_raise
from grpo_runtime.engines.vllm.seam import ended_at_stop, of_whole_characters
from grpo_runtime.errors import UserError
from grpo_runtime.process.lifetime import die_with
from grpo_runtime.rollouts.interface import EngineError, Rollout
from grpo_runtime.rollouts.sampling import PROBE_PARAMETERS
from grpo_runtime.rollouts.wire import EngineCall
from grpo_runtime.weight_sync.worker.extension import BESIDE

logger = logging.getLogger(__name__)

START_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
_NO_EXPERTS = "Number of experts in the model must be greater than 0"
SHORTEST_LOOK_SECONDS, LONGEST_LOOK_SECONDS = 0.002, 0.05
"""How long the server waits between two looks at workers that receive while they sample."""
LAST_ANSWERS_SECONDS = 3
"""How long a server that ends waits for answers. Those that a dead core was asked for never come."""


Beside = Callable[[AsyncLLM], AbstractAsyncContextManager[None]]
"""Something that continues with an engine for as long as its server runs."""


def configure(
    arguments: Sequence[str], *, model_dir: Path, given: Sequence[str]
) -> tuple[Namespace, VllmConfig]:
    """The arguments of a server of the model in `model_dir`, parsed, and vLLM's configuration of its engine.

    Raises UserError naming what vLLM refuses; `given` are those of the arguments that are the user's.
    """
    if is_cpu_build():
        checked(lambda: register_model(model_dir), given=given)
    cli_env_setup()
    args = parse_arguments(arguments, add=make_arg_parser)
    # what vLLM refuses here is the configuration; later errors may be anything
    checked(lambda: validate_parsed_serve_args(args), given=given)
    return args, checked(lambda: engine_config(args), given=given)


def engine_config(args: Namespace) -> VllmConfig:
    """All of vLLM's configuration, which vLLM has checked against itself and the model. Raises UserError when
    experts are to be spread and the model has none, where vLLM's own words name no field."""
    arguments = AsyncEngineArgs.from_cli_args(args)
    try:
        config: VllmConfig = arguments.create_engine_config(
            usage_context=UsageContext.OPENAI_API_SERVER, headless=args.headless
        )
    except ValueError as error:
        if _NO_EXPERTS in str(error):
            raise UserError("engine.expertParallel needs a model with experts: remove it") from error
        raise
    return config


def run_workers(config: VllmConfig) -> None:
    """Run the workers of a node other than the leader until one of them ends.

    They do not end when the leader does: until its next call they see nothing of it.
    """
    MultiprocExecutor(config, monitor_workers=False).start_worker_monitor(inline=True)


def run_server(
    args: Namespace,
    config: VllmConfig,
    *,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    beside: Beside = lambda _: nullcontext(),
) -> None:
    """Start the engine and answer until a signal or the engine's death. What `beside` makes of the engine's
    client is entered for as long."""
    # vLLM's run_server without its signal handling during the start
    address, listener = setup_server(args, reuse_port=False)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(args, config, listen_address=address, listener=listener, beside=beside))


async def _serve(
    args: Namespace, config: VllmConfig, *, listen_address: str, listener: socket.socket, beside: Beside
) -> None:
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
    async with _started(args, config) as client, _ending_with_its_coordinator(client), beside(client):
        shutdown = await build_and_serve(
            client, listen_address, listener, args, timeout_graceful_shutdown=LAST_ANSWERS_SECONDS
        )
    try:
        await shutdown
    finally:
        listener.close()


class VllmClient(AsyncLLM):
    """vLLM's engine client as the guard calls it, with four differences in what a weight sync calls."""

    _is_stopping = False
    """Whether it takes no calls for completions any more."""

    @cached_property
    def _sampling(self) -> dict[str, asyncio.AbstractEventLoop]:
        """The names of the requests for completions that run, each with its event loop."""
        return {}

    @cached_property
    def _pausing(self) -> asyncio.Lock:
        """Held by what pauses the cores, so that none is resumed by a call that began before."""
        return asyncio.Lock()

    async def sample(self, call: EngineCall, *, name: str) -> list[Rollout]:
        """The completions of a call, in the order of their seeds. Ends in the engine, too, when it is
        cancelled. Raises EngineError in a server that is to stop."""
        if self._is_stopping:
            raise EngineError(f"engine {name} is asked to stop: ask another one")
        request_id = random_uuid()
        self._sampling[request_id] = asyncio.get_running_loop()
        try:
            answer = await self._answer_to(call, parameters=call.parameters, request_id=request_id)
        finally:
            del self._sampling[request_id]
        rollouts = [rollout_of(output, prompt_ids=call.token_ids, engine=name) for output in answer.outputs]
        decoder = self.get_tokenizer()
        ended = [ended_at_stop(rollout, call=call, decoder=decoder) for rollout in rollouts]
        return [of_whole_characters(rollout, call=call, decoder=decoder) for rollout in ended]

    async def hand_over(self) -> None:
        """Abort every request for completions. The server has what the core sampled, and answers by itself,
        also where the core does not."""
        if self._sampling:
            logger.info("handing over what was sampled for %d calls", len(self._sampling))
        await self.abort(list(self._sampling))

    def shutdown(self, timeout: float | None = None) -> None:
        """End the cores. When the server is to stop, vLLM calls it in a thread, and the server still answers:
        what is being sampled is handed over before, and nothing else is begun."""
        self._is_stopping = True
        try:
            for loop in set(self._sampling.values()) - {_running_loop()}:
                asyncio.run_coroutine_threadsafe(self.hand_over(), loop).result(LAST_ANSWERS_SECONDS)
        except Exception:
            # other engines sample it anew, and a core that is not ended would keep the pod
            logger.exception("what is being sampled could not be handed over: the engine ends without it")
        finally:
            super().shutdown(timeout=timeout)

    async def logprobs(self, call: EngineCall) -> list[float]:
        """Logprobs (nats, temperature 1) of all tokens of a call after the first."""
        answer = await self._answer_to(call, parameters=PROBE_PARAMETERS, request_id=random_uuid())
        # there is none of the first token
        return flat_logprobs(answer.prompt_logprobs, of=call.token_ids[1:])

    async def _answer_to(
        self, call: EngineCall, *, parameters: Mapping[str, Any], request_id: str
    ) -> RequestOutput:
        """The last answer to a call, which is all that vLLM gives."""
        try:
            answers = self.generate(
                tokens_input(list(call.token_ids), cache_salt=call.cache_salt),
                vllm_parameters(parameters),
                request_id=request_id,
                data_parallel_rank=call.core,
            )
            return [answer async for answer in answers][-1]
        except (VLLMClientError, TypeError, ValueError) as error:
            raise BadRequestError(f"vLLM refuses the call: {error}") from error

    async def pause_generation(self, *, mode: PauseMode = "abort", clear_cache: bool = True) -> None:
        """Pause as vLLM does, but answer at once. After the core has paused, vLLM waits 20 ms more, so that
        the answers on their way are read before the pause is answered; nothing here depends on that order,
        and every weight sync would take as much longer."""
        if clear_cache:
            await self.renderer.clear_mm_cache_async()
        async with self._pausing:
            await self.engine_core.pause_scheduler_async(mode=mode, clear_cache=clear_cache)

    async def init_weight_transfer_engine(self, request: WeightTransferInitRequest) -> None:
        """Let all workers meet in the trainer's group. Several cores are paused until they have, and keep
        their requests: in each step a core waits for the experts of the others, so that one which has begun
        a step and one which waits for it in the group would wait for each other."""
        async with self._pausing:
            if self.vllm_config.parallel_config.data_parallel_size == 1 or await self.is_paused():
                await super().init_weight_transfer_engine(request)
                return
            await self.engine_core.pause_scheduler_async(mode="keep", clear_cache=False)
            try:
                await super().init_weight_transfer_engine(request)
            finally:
                await self.resume_generation()

    async def update_weights(self, request: WeightTransferUpdateRequest) -> None:
        """Let the workers receive, and return when all have checked what came. An engine that is not paused
        samples meanwhile, where the workers can do both."""
        if not self.vllm_config.parallel_config.worker_extension_cls or await self.is_paused():
            await super().update_weights(request)
            return
        name, pause_seconds = random_uuid(), SHORTEST_LOOK_SECONDS
        # a list, with the part of each worker, is for engines of vLLM's own, which are always paused
        info = {**cast("dict[str, Any]", request.update_info), BESIDE: name}
        await self.collective_rpc("update_weights", kwargs={"update_info": info})
        while not all(await self.collective_rpc("has_received_weights", args=(name,))):
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, LONGEST_LOOK_SECONDS)
        await self.collective_rpc("end_weight_reception", args=(name,))

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,  # noqa: ASYNC109 - as in vLLM's own
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        """The answers of the workers of all cores, when all have answered: vLLM raises the first error while
        other cores are still at work. Of theirs, one that says that others are to blame is raised only where
        there is no other."""
        core: Any = self.engine_core
        answers = await asyncio.gather(
            *(
                core._call_utility_async("collective_rpc", method, timeout, args, kwargs, engine=engine)
                for engine in core.core_engines
            ),
            return_exceptions=True,
        )
        if errors := [answer for answer in answers if isinstance(answer, Exception)]:
            raise error_to_raise(errors)
        return list(chain.from_iterable(cast("list[list[Any]]", answers)))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of this thread; None in one that has none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _may_fork(config: VllmConfig) -> bool:
    """Whether the cores may be forks: on CPU, each as its only worker."""
    parallel = config.parallel_config
    return (
        config.device_config.device_type == "cpu"
        and parallel.world_size == 1
        and parallel.distributed_executor_backend == "uni"
    )


@asynccontextmanager
async def _started(args: Namespace, config: VllmConfig) -> AsyncIterator[AsyncLLM]:
    client = VllmClient.from_vllm_config(
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


@asynccontextmanager
async def _ending_with_its_coordinator(client: AsyncLLM) -> AsyncIterator[None]:
    """End the cores when the process ends that notifies them when another one has requests.

    vLLM does not look at it, and without it a core waits for the others at its next request.
    """
    resources: Any = client.engine_core.resources
    if resources.coordinator is None:
        yield
        return
    loop, ended = asyncio.get_running_loop(), resources.coordinator.proc.sentinel

    def end() -> None:
        loop.remove_reader(ended)
        cores = resources.engine_manager.processes
        logger.critical(
            "the process that notifies the %d cores of this engine of each other's requests has ended with "
            "exit code %s: the cores are killed, because their next request would never be answered, and "
            "this server ends with them",
            len(cores),
            resources.coordinator.proc.exitcode,
        )
        for core in cores:
            core.kill()

    loop.add_reader(ended, end)
    try:
        yield
    finally:
        loop.remove_reader(ended)


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
