"""Two ways of starting an engine: vLLM's own server, and ours. Caches are empty, as in a new pod."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from grpo_api.contract.run_config import RunConfig
from grpo_bench.cpu_time import seconds_of_descendants
from grpo_bench.errors import BenchError
from grpo_bench.example_job import context_of_example, require_all_alive
from grpo_bench.pairs import Amounts, Way
from grpo_runtime.engines.fleet.engine_client import Address, EngineClient, open_session
from grpo_runtime.engines.vllm.arguments import (
    SERVER_ENVIRONMENT,
    engine_environment,
    is_cpu_build,
    server_arguments,
)
from grpo_runtime.local.context import LocalContext
from grpo_runtime.local.environments import rollout_environment
from grpo_runtime.local.ports import LOOPBACK, free_ports
from grpo_runtime.rollouts.interface import EngineError
from grpo_runtime.settings import read_rollout_settings

VLLM_SERVE = (sys.executable, "-m", "vllm.entrypoints.cli.main", "serve")
START_SECONDS = 240.0
LOOK_SECONDS = 0.05
"""The time between two questions whether the engine is live."""

CommandOf = Callable[[str, int], Sequence[str]]
"""Name and port of a server -> its command."""


@contextmanager
def two_ways() -> Iterator[tuple[Way, Way]]:
    """vLLM's server and ours, with the same arguments, environment and model."""
    with context_of_example() as context:
        starts = Starts(context)
        yield Way("vllm serve", starts.vllms), Way("grpo-runtime rollout", starts.ours)


class Starts:
    """Starts one engine after the other; each has ended before the next one starts."""

    def __init__(self, context: LocalContext) -> None:
        """Start our server once before: it brings files into memory and makes the model that both read."""
        self._context = context
        self._start("first", self._our_command)
        self._model = context.workspace.cache("first") / "model"
        run = _with_model(context.run_config, self._model)
        context.workspace.run_config.write_text(run.model_dump_json(by_alias=True))

    def vllms(self, number: int) -> Amounts:
        """Start vLLM's server, whose core is a new process."""
        return self._start(f"vllm-{number}", self._vllms_command)

    def ours(self, number: int) -> Amounts:
        """Start our server, whose core is a fork of it."""
        return self._start(f"ours-{number}", self._our_command)

    def _vllms_command(self, _name: str, port: int) -> Sequence[str]:
        is_cpu = is_cpu_build()
        return [
            *VLLM_SERVE,
            *server_arguments(
                self._context.run_config, model_dir=self._model, is_cpu=is_cpu, host=LOOPBACK, port=port
            ),
        ]

    def _our_command(self, name: str, port: int) -> Sequence[str]:
        termination_log = self._context.fresh_termination_log(name)
        return [
            *self._context.programs.rollout,
            *("--host", LOOPBACK, "--port", str(port), "--termination-log", str(termination_log)),
        ]

    def _start(self, name: str, command_of: CommandOf) -> Amounts:
        """Time and CPU time until the engine reports that it is live."""
        (port,) = free_ports(1)
        command, environment = command_of(name, port), self._environment(name)
        processes, log = self._context.processes, self._context.workspace.log(name)
        began = time.monotonic()
        processes.start(name, command, environment, log=log)
        try:
            asyncio.run(self._wait_until_live(name, port, environment, began=began))
            return {"seconds": time.monotonic() - began, "CPU seconds": seconds_of_descendants()}
        finally:
            processes.end_all()

    def _environment(self, name: str) -> Mapping[str, str]:
        cache = self._context.fresh_cache(name)
        return {
            **self._context.environment,
            # our server sets these itself
            **engine_environment(is_cpu=is_cpu_build()),
            **SERVER_ENVIRONMENT,
            **rollout_environment(self._context.workspace, name=name, cache=cache),
            # as in a pod: vLLM caches there what it knows about models
            "XDG_CACHE_HOME": str(cache / "xdg"),
        }

    async def _wait_until_live(
        self, name: str, port: int, environment: Mapping[str, str], *, began: float
    ) -> None:
        tokens = read_rollout_settings(environment).tokens
        async with open_session() as session:
            client = EngineClient(session, Address(LOOPBACK, port), tokens=tokens, attempt=1)
            while not await _is_live(client):
                require_all_alive(self._context)
                if time.monotonic() - began > START_SECONDS:
                    raise BenchError(f"{name} is not live after {START_SECONDS:g} s")
                await asyncio.sleep(LOOK_SECONDS)


async def _is_live(client: EngineClient) -> bool:
    try:
        return (await client.identity(timeout_seconds=2.0)).is_live
    except EngineError:
        return False


def _with_model(run: RunConfig, folder: Path) -> RunConfig:
    """The same run with a model in a local folder."""
    return run.model_copy(
        update={"model": run.model.model_copy(update={"source": folder.absolute().as_uri()})}
    )
