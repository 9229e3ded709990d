"""One engine's weight sync, from pause to admission. Each phase has a deadline."""

import asyncio
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.rollout.engine_client import EngineClient
from grpo_runtime.rollout.errors import EngineError
from grpo_runtime.rollout.interface import Probe
from grpo_runtime.rollout.sampling import BadAnswerError, probe_body, probe_error
from grpo_runtime.serve import routes
from grpo_runtime.weight_sync.interface import Info, WeightSender, WeightSyncError
from grpo_runtime.weight_sync.packing import PackedWeights
from grpo_runtime.weight_sync.registry import Backend, SenderSettings

_T = TypeVar("_T")


class SyncFailedError(Exception):
    """An engine did not get the weights; the message names the phase. It must not serve."""


@dataclass(frozen=True)
class SyncJob:
    """What every engine is to be given."""

    version: PolicyVersion
    weights: PackedWeights
    probe: Probe | None


@dataclass(frozen=True)
class EngineSyncReport:
    """How one engine's sync went. `probe_error` is 0 without a probe."""

    phase_seconds: Mapping[str, float]
    probe_error: float


class HttpChannel:
    """The verbs as calls of the engine's admin routes."""

    def __init__(self, client: EngineClient, *, timeout_seconds: float) -> None:
        self._client = client
        self._timeout_seconds = timeout_seconds

    async def init(self, info: Info) -> None:
        """Let the engine connect to the sender that wrote `info`."""
        await self._verb(routes.INIT_PATH, {"init_info": dict(info)})

    async def start(self) -> None:
        """Open an update."""
        await self._verb(routes.START_PATH, {})

    async def update(self, info: Info) -> None:
        """Let the engine receive; answers when it has checked everything."""
        await self._verb(routes.UPDATE_PATH, {"update_info": dict(info)})

    async def finish(self, version: str) -> None:
        """Apply what was received."""
        await self._verb(routes.FINISH_PATH, {"weight_version": version})

    async def shutdown(self) -> None:
        """Let the engine close its connection to the sender."""
        await self._verb(routes.SHUTDOWN_PATH, {})

    async def _verb(self, path: str, body: Info) -> None:
        try:
            await self._client.weight_verb(path, body, timeout_seconds=self._timeout_seconds)
        except EngineError as error:
            raise WeightSyncError(str(error)) from error


class EngineSync:
    """Syncs one engine process again and again, over one connection as long as it holds."""

    def __init__(
        self, client: EngineClient, *, backend: Backend[PackedWeights], timeout_seconds: float
    ) -> None:
        self._client = client
        self._backend = backend
        self._timeout_seconds = timeout_seconds
        self._sender: WeightSender[PackedWeights] | None = None

    async def run(self, job: SyncJob) -> EngineSyncReport:
        """Pause, transfer, apply, resume, verify, admit.

        The engine is verified after it resumed, because a paused engine computes nothing; it has no work
        then, since only admitted engines with the newest weights are given any. Raises SyncFailedError; the
        engine then has its old weights or unverified ones, and is out of service.
        """
        phases = _Phases(self._timeout_seconds)
        limit = self._timeout_seconds
        try:
            await phases.run("pause", self._client.pause(timeout_seconds=limit))
            sender = await phases.run("init", self._connected())
            await phases.run("start", _start(sender))
            await phases.run("transfer", sender.update(job.weights))
            await phases.run("finish", sender.finish(str(job.version)))
            await phases.run("resume", self._client.resume(timeout_seconds=limit))
            error = await phases.run("verify", self._verify(job.probe))
            await phases.run("admit", self._client.admit(job.version, timeout_seconds=limit))
        except BaseException:
            # after an error the connection's state is unknown
            await self.close()
            raise
        return EngineSyncReport(phase_seconds=phases.seconds, probe_error=error)

    async def close(self) -> None:
        """Let go of the connection; the next run makes a new one."""
        if self._sender is not None:
            sender, self._sender = self._sender, None
            await sender.shutdown()

    async def _connected(self) -> WeightSender[PackedWeights]:
        if self._sender is None:
            channel = HttpChannel(self._client, timeout_seconds=self._timeout_seconds)
            settings = SenderSettings(
                peer_host=self._client.address.host, timeout_seconds=self._timeout_seconds
            )
            self._sender = self._backend.make_sender(channel, settings)
            await self._sender.init()
        return self._sender

    async def _verify(self, probe: Probe | None) -> float:
        if probe is None:
            return 0.0
        answer = await self._client.generate(
            probe_body(probe), is_probe=True, timeout_seconds=self._timeout_seconds
        )
        error = probe_error(answer, probe=probe, engine=str(self._client.address))
        if not error <= probe.tolerance:
            raise SyncFailedError(
                f"its logprobs differ from the trainer's by {error:.3g} nats, more than {probe.tolerance:g}"
            )
        return error


async def _start(sender: WeightSender[PackedWeights]) -> None:
    """Open an update, ending one that an earlier trainer left open."""
    try:
        await sender.start()
    except WeightSyncError:
        await sender.abort()
        await sender.start()


class _Phases:
    """Runs the phases one after the other, each under the deadline, and notes how long they took."""

    def __init__(self, limit_seconds: float) -> None:
        self.seconds: dict[str, float] = {}
        self._limit_seconds = limit_seconds

    async def run(self, name: str, work: Awaitable[_T]) -> _T:
        start = time.monotonic()
        try:
            async with asyncio.timeout(self._limit_seconds):
                return await work
        except TimeoutError as error:
            raise SyncFailedError(f"{name}: not done within {self._limit_seconds:g} s") from error
        except (EngineError, WeightSyncError, BadAnswerError, SyncFailedError, OSError) as error:
            raise SyncFailedError(f"{name}: {error}") from error
        finally:
            self.seconds[name] = time.monotonic() - start
