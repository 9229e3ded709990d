"""An inference engine that the product does not know: a row in the registry, and pods and ranks run it."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fake_local_engine import FakeLocalEngine, some_weights, token_of
from fake_vllm import FakeVLLM
from pod_builder import run_config
from starlette.applications import Starlette
from starlette.middleware import Middleware

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.run_config import RunConfig
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.colocated.engine_child import make_engine_of
from grpo_runtime.engines.colocated.rank_engine import RankEngine
from grpo_runtime.engines.fleet.engine_client import MAX_BYTES, Address, EngineClient, open_session
from grpo_runtime.engines.interface import EngineKind, GpuFractions
from grpo_runtime.engines.registry import ENGINE_KINDS, engine_kind
from grpo_runtime.engines.serve import main
from grpo_runtime.engines.serve.guard import Guard
from grpo_runtime.local.ports import LOOPBACK, free_ports
from grpo_runtime.rollouts.frames import read_frames
from grpo_runtime.rollouts.interface import GenerateRequest, Rollout
from grpo_runtime.rollouts.wire import EngineCall, read_completion
from grpo_runtime.settings import RolloutSettings
from grpo_runtime.weight_sync.registry import IN_PROCESS

VERSION = PolicyVersion(1, 0)


class SteppedEngine(FakeLocalEngine):
    """One that can be in a process of its own."""

    num_steps = 0

    def sample_each(self, requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, Rollout]]:
        yield from enumerate(map(self.rollout, requests))


class ServerUntilCalled(uvicorn.Server):
    """Serves until the call that it makes of itself has ended."""

    def __init__(self, config: uvicorn.Config, *, call: Coroutine[Any, Any, None]) -> None:
        super().__init__(config)
        self._call = call

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        calling = self._calling = asyncio.ensure_future(self._call)
        calling.add_done_callback(lambda _: setattr(self, "should_exit", True))


class FixedKind:
    """Engines that sample what the seed says. A server of one ends with the coroutine of `call_server`."""

    name = "Fixed"
    gpu_fractions = GpuFractions(alone=0.5, asleep=0.5, awake=0.5)

    def __init__(self, call_server: Callable[[Address, RolloutSettings], Coroutine[Any, Any, None]]) -> None:
        self._call_server = call_server
        self.made: list[tuple[RunConfig, Path, str]] = []
        self.is_imported = False

    def is_cpu_build(self) -> bool:
        return True

    def environment(self) -> dict[str, str]:
        return {"FIXED_ENGINE": "1"}

    def colocated_environment(self) -> dict[str, str]:
        return {**self.environment(), "FIXED_ENGINE_IN_A_RANK": "1"}

    def import_colocated(self) -> None:
        self.is_imported = True

    def make_colocated(self, run_config: RunConfig, *, model_dir: Path, name: str) -> SteppedEngine:
        self.made.append((run_config, model_dir, name))
        return SteppedEngine(name=name)

    def serve(
        self,
        settings: RolloutSettings,
        *,
        model_dir: Path,
        host: str,
        port: int,
        rendezvous_port: int,
        new_loop: Callable[[], asyncio.AbstractEventLoop],
    ) -> None:
        assert os.environ["FIXED_ENGINE"] == "1"
        assert (model_dir / "config.json").is_file()
        engine = FakeVLLM(weight_version=str(VERSION))
        app = Starlette(middleware=[Middleware(Guard)])
        app.state.engine_client = engine
        app.mount("/", engine)
        server = ServerUntilCalled(
            uvicorn.Config(app, host=host, port=port, lifespan="off", log_config=None),
            call=self._call_server(Address(host, port), settings),
        )
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(server.serve())

    def serve_followed(self, arguments: Sequence[str], **_: Any) -> None:
        raise NotImplementedError


@pytest.fixture
def own_signal_handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def registered(kind: EngineKind, monkeypatch: pytest.MonkeyPatch) -> EngineKind:
    monkeypatch.setitem(ENGINE_KINDS, kind.name, kind)
    return engine_kind(kind.name)


@pytest.mark.usefixtures("own_signal_handler", "pod_environment")
def test_a_rollout_pod_serves_it_behind_the_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampled: list[Rollout] = []

    async def sample(address: Address, settings: RolloutSettings) -> None:
        call = EngineCall([1, 2], {"seed": 7})
        async with open_session() as session:
            client = EngineClient(session, address, tokens=settings.tokens, attempt=1)
            await client.admit(VERSION, timeout_seconds=10)
            [frame] = read_frames(await client.sample(call, max_bytes=MAX_BYTES))
        sampled.append(read_completion(frame, prompt_ids=(1, 2)))

    monkeypatch.setenv("FIXED_ENGINE", "")
    (port,) = free_ports(1)
    options = main.RolloutOptions(host=LOOPBACK, port=port, termination_log=tmp_path / "termination-log")
    kind = registered(FixedKind(sample), monkeypatch)
    assert main.serve(os.environ, options=options, kind=kind) == ExitCode.UNEXPECTED
    assert "the Fixed engine died" in options.termination_log.read_text()
    [rollout] = sampled
    assert (rollout.completion_ids, rollout.engine) == ((7, 8, 9), "pod-0")


async def no_call(address: Address, settings: RolloutSettings) -> None:
    raise AssertionError("nothing is served here")


def test_a_rank_gets_weights_into_it_and_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, fixed = run_config(mode="Colocated"), FixedKind(no_call)
    given = {
        "run_config": run.model_dump_json(by_alias=True),
        "model_dir": str(tmp_path),
        "name": "engine-3",
    }
    made = make_engine_of(registered(fixed, monkeypatch), given)
    assert fixed.is_imported
    assert fixed.made == [(run, tmp_path, "engine-3")]
    engine = RankEngine(made, backend=IN_PROCESS, sleep_level=1, timeout_seconds=60.0)
    engine.sync(some_weights(), version=VERSION, probe=None)
    [rollout] = engine.generate([GenerateRequest(prompt_ids=(1, 2), seed=8)])
    assert set(rollout.completion_ids) == {token_of(8)}
    assert (str(rollout.versions[0].version), rollout.engine) == (str(VERSION), "engine-3")


def test_what_is_asked_of_a_kind_before_an_engine_starts_imports_neither_its_library_nor_torch() -> None:
    ask = """
import sys
from grpo_runtime.engines.registry import engine_kind
kind = engine_kind()
kind.name, kind.gpu_fractions, kind.is_cpu_build(), kind.environment(), kind.colocated_environment()
assert not {"torch", "vllm"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", ask], check=True)
