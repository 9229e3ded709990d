"""The weight sync of engines that share a sender, from pause to admission. Each phase has a deadline."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_api.contract.versions import PolicyVersion
from grpo_api.v1alpha1.spec import PauseMode
from grpo_runtime.engines.fleet.engine_calls import BadAnswerError, answered_probe_error, probe_call
from grpo_runtime.engines.fleet.engine_client import EngineClient, HttpChannel
from grpo_runtime.engines.fleet.settings import KEEP, Pause
from grpo_runtime.rollouts.interface import EngineError, Probe
from grpo_runtime.weight_sync.deadlines import Deadlines
from grpo_runtime.weight_sync.interface import (
    Backend,
    Failures,
    NeedsPauseError,
    Peer,
    PreparedWeights,
    SenderSettings,
    WeightSender,
    WeightSyncError,
)
from grpo_runtime.weight_sync.sender import failures_of, for_each_engine

_GRACE_SECONDS = 5.0
"""A sender keeps the deadline itself; one that does not is given up a little later."""


async def _nothing(_: str) -> None:
    pass


class SyncFailedError(Exception):
    """An engine did not get the weights; the message names the phase. It must not serve."""


@dataclass(frozen=True)
class SyncJob:
    """What every engine is to be given. `weights` is what the fleet's backend has prepared."""

    version: PolicyVersion
    weights: PreparedWeights
    probe: Probe | None


@dataclass(frozen=True)
class EngineSyncReport:
    """How one engine's sync went. `paused_seconds` run from the call that pauses it to its answer that it has
    resumed; `probe_error` is 0 without a probe."""

    phase_seconds: Mapping[str, float]
    paused_seconds: float
    probe_error: float


class EngineSync:
    """Syncs the same engine processes again and again, with one sender as long as all goes well."""

    def __init__(
        self,
        clients: Mapping[str, EngineClient],
        *,
        backend: Backend[Any],
        deadlines: Deadlines,
        workers_per_engine: int = 1,
        cores_per_engine: int = 1,
        transfers_first: bool = False,
        pause: Pause = KEEP,
        before_pause: Callable[[str], Awaitable[None]] = _nothing,
    ) -> None:
        """`clients` has the calls to each engine by its name; each has `workers_per_engine` receivers and
        `cores_per_engine` cores, which are verified one by one. The syncs of a fleet share their
        `deadlines`. Engines that can receive while they serve are paused when they have all weights, where it
        `transfers_first`. `before_pause` is called with an engine's name before it is paused; with pauseMode
        Wait, it returns when the engine has answered all that it was given, and raises SyncFailedError for
        one that was taken out of the fleet meanwhile."""
        self._clients = clients
        self._backend = backend
        self._workers_per_engine = workers_per_engine
        self._cores_per_engine = cores_per_engine
        self._transfers_first = transfers_first
        self._pause = pause
        self._before_pause = before_pause
        self._deadlines = deadlines
        self._sender: WeightSender[Any] | None = None

    async def run(self, job: SyncJob) -> Mapping[str, EngineSyncReport | Exception]:
        """Pause, transfer, apply, resume, verify, admit; or transfer and then pause. Gives a report or an
        error for each engine.

        Each phase is over for all engines before the next one begins; an engine that fails one is left out of
        the rest. The error is a SyncFailedError, or what else was raised. The engine then has its old weights
        or unverified ones, and is out of service. An engine is verified after it resumed, because a paused
        engine computes nothing. It is given no work then. What it was given before goes on, where weights may
        change meanwhile, and counts once it is verified.
        """
        phases = _Phases(self._clients, deadlines=self._deadlines)
        try:
            paused, errors = await self._run(job, phases)
        except BaseException:
            await self.close()
            raise
        if phases.errors:
            # after an error the connection's state is unknown
            await self.close()
        return {
            name: phases.errors.get(name)
            or EngineSyncReport(phases.seconds[name], paused[name], errors[name])
            for name in self._clients
        }

    async def _run(self, job: SyncJob, phases: "_Phases") -> tuple[Mapping[str, float], Mapping[str, float]]:
        """All phases; returns by engine for how long it was paused (seconds) and the error of the probe
        (nats)."""
        errors: dict[str, float] = {}
        paused_at: dict[str, float] = {}
        paused: dict[str, float] = {}
        limit, version = self._deadlines.timeout_seconds, str(job.version)

        waits = self._pause.mode is PauseMode.WAIT

        async def pause(name: str) -> None:
            if not waits:
                await self._before_pause(name)
            paused_at[name] = time.monotonic()
            await self._clients[name].pause(
                mode="abort" if self._pause.mode is PauseMode.ABORT else "keep",
                clears_cache=not self._pause.keeps_cache,
                timeout_seconds=limit,
            )

        async def resume(name: str) -> None:
            await self._clients[name].resume(timeout_seconds=limit)
            paused[name] = time.monotonic() - paused_at[name]

        async def verify(name: str) -> None:
            errors[name] = await self._probe_error(name, job.probe)

        async def pause_all() -> None:
            if waits:
                await phases.unlimited("drain", self._before_pause)
            await phases.each("pause", pause)

        transfers_first = self._transfers_first
        if not transfers_first:
            await pause_all()
        sender = await self._deliver(job, phases)
        if transfers_first:
            has_room = not phases.take_back(NeedsPauseError)
            await pause_all()
            if not has_room:
                # and so from now on: an engine that refuses breaks the group of the others
                self._transfers_first = False
                await self.close()
                sender = await self._deliver(job, phases)
        await phases.together("finish", lambda names: sender.finish(version, engines=names))
        await phases.each("resume", resume)
        await phases.each("verify", verify)
        await phases.each("admit", lambda name: self._clients[name].admit(job.version, timeout_seconds=limit))
        return paused, errors

    async def _deliver(self, job: SyncJob, phases: "_Phases") -> WeightSender[Any]:
        """Connect, where that has not been done, and transfer. Returns the sender."""
        is_connected = self._sender is not None
        sender = self._sender = self._sender or self._make_sender()
        if is_connected:
            phases.skip("init")
        else:
            await phases.together("init", sender.init)
        await phases.together("start", sender.start)
        await phases.together("transfer", lambda names: sender.update(job.weights, engines=names))
        return sender

    async def close(self) -> None:
        """Let go of the sender; the next run makes a new one."""
        if self._sender is not None:
            sender, self._sender = self._sender, None
            await sender.shutdown()

    def _make_sender(self) -> WeightSender[Any]:
        limit = self._deadlines.timeout_seconds
        peers = {
            name: Peer(
                HttpChannel(client, timeout_seconds=limit),
                host=client.address.host,
                num_workers=self._workers_per_engine,
            )
            for name, client in self._clients.items()
        }
        return self._backend.make_sender(peers, SenderSettings(self._deadlines))

    async def _probe_error(self, name: str, probe: Probe | None) -> float:
        """The largest error of its cores, which have their own copies of most weights."""
        if probe is None:
            return 0.0
        client, limit = self._clients[name], self._deadlines.timeout_seconds
        answers = await asyncio.gather(
            *(
                client.logprobs(probe_call(probe, core=core), timeout_seconds=limit)
                for core in range(self._cores_per_engine)
            )
        )
        error = max(
            answered_probe_error(answer, probe=probe, engine=str(client.address)) for answer in answers
        )
        if not error <= probe.tolerance:
            raise SyncFailedError(
                f"its logprobs differ from the trainer's by {error:.3g} nats, more than {probe.tolerance:g}"
            )
        return error


class _Phases:
    """Runs the phases one after the other, for the engines that none has failed for yet.

    `seconds` says how long each phase took, by engine and phase; `errors` why an engine is left out.
    """

    def __init__(self, engines: Collection[str], *, deadlines: Deadlines) -> None:
        self.seconds: dict[str, dict[str, float]] = {name: {} for name in engines}
        self.errors: dict[str, Exception] = {}
        self._deadlines = deadlines

    async def each(self, phase: str, call: Callable[[str], Awaitable[None]]) -> None:
        """A phase in which engines are called one by one, all at the same time."""
        names, start = self._going(), time.monotonic()
        work = {name: self._measured(phase, name, call) for name in names}
        failures = await for_each_engine(
            work, timeout_seconds=self._deadlines.of(phase), lag_seconds=self._deadlines.lag_seconds
        )
        if names and not failures:
            self._deadlines.note(phase, time.monotonic() - start)
        self._note(phase, failures)

    async def unlimited(self, phase: str, call: Callable[[str], Awaitable[None]]) -> None:
        """A phase that takes as long as an engine samples, which no deadline knows: the fleet looks after
        engines that sample, and ends the calls of one that hangs."""
        names = self._going()
        work = (self._measured(phase, name, call) for name in names)
        self._note(phase, failures_of(names, await asyncio.gather(*work, return_exceptions=True)))

    async def _measured(self, phase: str, name: str, call: Callable[[str], Awaitable[None]]) -> None:
        start = time.monotonic()
        try:
            await call(name)
        finally:
            self.seconds[name][phase] = time.monotonic() - start

    async def together(self, phase: str, verb: Callable[[Collection[str]], Awaitable[Failures]]) -> None:
        """A phase in which the sender does something with all engines."""
        names, start = self._going(), time.monotonic()
        if not names:
            return
        try:
            async with asyncio.timeout(self._deadlines.timeout_seconds + _GRACE_SECONDS):
                failures = await verb(names)
        except Exception as error:
            # a sender gives an engine's failure back: what it raises is the failure of all
            failures = dict.fromkeys(names, error)
        for name in names:
            self.seconds[name][phase] = time.monotonic() - start
        self._note(phase, failures)

    def skip(self, phase: str) -> None:
        """A phase with nothing to do, which takes no time."""
        for name in self._going():
            self.seconds[name][phase] = 0.0

    def take_back(self, kind: type[Exception]) -> list[str]:
        """The engines that failed with an error of that kind, which go on with the others."""
        names = [name for name, error in self.errors.items() if isinstance(error.__cause__, kind)]
        for name in names:
            del self.errors[name]
        return names

    def _going(self) -> list[str]:
        return [name for name in self.seconds if name not in self.errors]

    def _note(self, phase: str, failures: Failures) -> None:
        for name, error in failures.items():
            self.errors[name] = self._sentence(phase, error)

    def _sentence(self, phase: str, error: Exception) -> Exception:
        """The error with its phase, unless it is one that no phase is known to raise."""
        if isinstance(error, TimeoutError):
            failure = SyncFailedError(f"{phase}: not done within {self._deadlines.timeout_seconds:g} s")
        elif isinstance(error, EngineError | WeightSyncError | BadAnswerError | SyncFailedError | OSError):
            failure = SyncFailedError(f"{phase}: {error}")
        else:
            return error
        failure.__cause__ = error
        return failure
