"""Starting an engine: vLLM's own server, and ours. Each start is a pod's: its caches are empty."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp

from grpo_api.contract.run_config import RunConfig
from grpo_bench.cpu_time import seconds_of_descendants
from grpo_bench.errors import BenchError
from grpo_bench.pairs import Amounts, Way
from grpo_bench.scene import require_all_alive, scene_of_example
from grpo_runtime.local.environments import LOOPBACK, free_ports, rollout_environment
from grpo_runtime.local.scene import Scene
from grpo_runtime.rollout.engine_client import Address, EngineClient
from grpo_runtime.rollout.errors import EngineError
from grpo_runtime.serve.vllm_args import (
    SERVER_ENVIRONMENT,
    engine_environment,
    is_cpu_build,
    server_arguments,
)
from grpo_runtime.settings import read_rollout_settings

VLLM_SERVE = (sys.executable, "-m", "vllm.entrypoints.cli.main", "serve")
START_SECONDS = 240.0
LOOK_SECONDS = 0.05
"""How often an engine is asked whether it lives."""

CommandOf = Callable[[str, int], Sequence[str]]
"""The command of a server of that name that listens on that port."""


@contextmanager
def two_ways() -> Iterator[tuple[Way, Way]]:
    """vLLM's and ours, with the same arguments, environment and model."""
    with scene_of_example() as scene:
        starts = Starts(scene)
        yield Way("vllm serve", starts.vllms), Way("grpo-runtime rollout", starts.ours)


class Starts:
    """Starts one engine after the other; each is gone before the next begins."""

    def __init__(self, scene: Scene) -> None:
        """One start of ours goes before: it brings files into memory, and leaves the model that both read."""
        self._scene = scene
        self._start("first", self._our_command)
        self._model = scene.workspace.cache("first") / "model"
        run = _with_model(scene.run, self._model)
        scene.workspace.run_config.write_text(run.model_dump_json(by_alias=True))

    def vllms(self, number: int) -> Amounts:
        """vLLM's server, which starts its core as a process from nothing."""
        return self._start(f"vllm-{number}", self._vllms_command)

    def ours(self, number: int) -> Amounts:
        """Our server, whose core is a fork of it."""
        return self._start(f"ours-{number}", self._our_command)

    def _vllms_command(self, _name: str, port: int) -> Sequence[str]:
        is_cpu = is_cpu_build()
        return [
            *VLLM_SERVE,
            *server_arguments(
                self._scene.run, model_dir=self._model, is_cpu=is_cpu, host=LOOPBACK, port=port
            ),
        ]

    def _our_command(self, name: str, port: int) -> Sequence[str]:
        words = self._scene.fresh_termination_log(name)
        return [
            *self._scene.programs.rollout,
            *("--host", LOOPBACK, "--port", str(port), "--termination-log", str(words)),
        ]

    def _start(self, name: str, command_of: CommandOf) -> Amounts:
        """Time and CPU time until the engine answers that it lives."""
        (port,) = free_ports(1)
        command, environment = command_of(name, port), self._environment(name)
        household, log = self._scene.household, self._scene.workspace.log(name)
        began = time.monotonic()
        household.start(name, command, environment, log=log)
        try:
            asyncio.run(self._wait_until_live(name, port, environment, began=began))
            return {"seconds": time.monotonic() - began, "CPU seconds": seconds_of_descendants()}
        finally:
            household.end_all()

    def _environment(self, name: str) -> Mapping[str, str]:
        cache = self._scene.fresh_cache(name)
        return {
            **self._scene.environment,
            # ours sets them itself
            **engine_environment(is_cpu=is_cpu_build()),
            **SERVER_ENVIRONMENT,
            **rollout_environment(self._scene.workspace, name=name, cache=cache),
            # as in a pod: vLLM keeps there what it has learned about models
            "XDG_CACHE_HOME": str(cache / "xdg"),
        }

    async def _wait_until_live(
        self, name: str, port: int, environment: Mapping[str, str], *, began: float
    ) -> None:
        tokens = read_rollout_settings(environment).tokens
        async with aiohttp.ClientSession() as session:
            client = EngineClient(session, Address(LOOPBACK, port), tokens=tokens, attempt=1)
            while not await _is_live(client):
                require_all_alive(self._scene)
                if time.monotonic() - began > START_SECONDS:
                    raise BenchError(f"{name} does not live after {START_SECONDS:g} s")
                await asyncio.sleep(LOOK_SECONDS)


async def _is_live(client: EngineClient) -> bool:
    try:
        return (await client.identity(timeout_seconds=2.0)).is_live
    except EngineError:
        return False


def _with_model(run: RunConfig, folder: Path) -> RunConfig:
    """The same run with a model that is there already."""
    return run.model_copy(
        update={"model": run.model.model_copy(update={"source": folder.absolute().as_uri()})}
    )
