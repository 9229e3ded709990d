"""What a fleet does: keeps engines' weights new and gives them work. Runs in one event loop of its own.

A watcher looks at every address all the time. An engine that joins, also in the middle of a step, is synced
with the newest weights before it serves; one that is lost is left out, and its requests go to others.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

import aiohttp

from grpo_api.contract.progress import EngineCounts
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.rollout import membership
from grpo_runtime.rollout.bundle import Bundle, bundle
from grpo_runtime.rollout.dispatch import Dispatch, DispatchLimits
from grpo_runtime.rollout.engine_client import EngineClient
from grpo_runtime.rollout.engine_sync import EngineSync, EngineSyncReport, SyncFailedError, SyncJob
from grpo_runtime.rollout.errors import (
    EngineError,
    EngineGoneError,
    EngineTimeoutError,
    FencedOffError,
    RolloutLostError,
)
from grpo_runtime.rollout.fleet_settings import FleetSettings
from grpo_runtime.rollout.interface import GenerateRequest, NamedWeights, Probe, Rollout, SyncReport
from grpo_runtime.rollout.membership import Member, MemberState
from grpo_runtime.rollout.roster import Roster
from grpo_runtime.rollout.sampling import BadAnswerError, parse_rollouts, sampling_body
from grpo_runtime.weight_sync.packing import pack
from grpo_runtime.weight_sync.registry import BACKENDS

log = logging.getLogger(__name__)

_REVOKE_TIMEOUT_SECONDS = 5.0


class FleetCore:
    """`Engines` over HTTP. Made inside the event loop it is used in; looks for engines at once."""

    def __init__(self, settings: FleetSettings) -> None:
        self.num_stale_answers = 0
        """Completions thrown away because other weights than the newest had sampled them."""
        self.num_resent = 0
        """Samples asked of another engine because the first one was lost."""
        self._settings = settings
        # as many connections as there is work (the limits are in the dispatch), dropped before vLLM does
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3.0)
        self._session = aiohttp.ClientSession(connector=connector)
        self._roster = Roster(settings, self._session)
        self._job: SyncJob | None = None
        self._syncs: dict[str, EngineSync] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._reports: dict[str, EngineSyncReport] = {}
        self._failures: dict[str, str] = {}
        self._watcher = asyncio.ensure_future(self._watch())

    @property
    def num_lost(self) -> int:
        """Engine processes lost so far."""
        return self._roster.num_lost

    def counts(self) -> EngineCounts:
        """Engines by state, as of now."""
        return membership.count(self._roster.members(), desired=self._settings.desired)

    async def sync(
        self, weights: Callable[[], NamedWeights], *, version: PolicyVersion, probe: Probe | None
    ) -> SyncReport:
        """Give every reachable engine the weights; see `Engines.sync`.

        The weights are copied first, so that an engine that joins in mid-step gets the same ones. An engine
        whose last sync failed is left to the watcher, which tries it ever less often.
        """
        is_first = self._job is None
        started = time.monotonic()
        packed = await asyncio.to_thread(lambda: pack(weights()))
        pack_seconds = time.monotonic() - started
        self._job = SyncJob(version=version, weights=packed, probe=probe)
        self._reports, self._failures = {}, {}
        self._roster.new_version(version)
        in_first_round = self._start_syncs(is_called=True)
        while not self._is_enough(is_first, in_first_round, waited=time.monotonic() - started):
            await self._roster.changed(timeout_seconds=self._settings.heartbeat_seconds)
        return self._report(version, packed.manifest.num_bytes, pack_seconds=pack_seconds)

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Rollout]:
        """Sample all requests, in the order given; see `Engines.generate`."""
        if self._job is None:
            raise RuntimeError("the fleet has no weights yet: call sync before generate")
        limits = DispatchLimits(
            max_in_flight=self._settings.max_in_flight,
            empty_wait_seconds=self._settings.empty_wait_seconds,
            poll_seconds=self._settings.heartbeat_seconds,
        )
        bundles = bundle(
            requests,
            # also those that are not Current yet: they may join while the step runs
            num_engines=max(self._settings.desired, len(self.workers())),
            max_samples=self._settings.max_in_flight,
        )
        dispatch = Dispatch(self, bundles, limits=limits, clock=time.monotonic)
        try:
            return await dispatch.run()
        finally:
            self.num_resent += dispatch.num_resent

    async def close(self) -> None:
        """Leave the engines as they are and let go of every connection."""
        running = [self._watcher, *self._tasks.values()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._roster.close()
        for sync in self._syncs.values():
            await sync.close()
        await self._session.close()

    # --- what Dispatch asks of a WorkerSource ---

    def workers(self) -> Mapping[str, "EngineWorker"]:
        """The engines that may be given work: the Current ones."""
        self._check_watcher()
        return {
            member.instance: EngineWorker(self, member)
            for member in self._roster.members()
            if member.state == MemberState.CURRENT
        }

    def is_lost(self, key: str) -> bool:
        """Whether waiting for this process is in vain: it is gone, or out of the fleet."""
        member = self._roster.find(key)
        return member is None or not membership.will_answer(member)

    def distrust(self, key: str, error: Exception) -> None:
        """Take an engine out of service until the watcher has seen it, or synced it, again."""
        log.warning("a request failed, it goes to another engine: %s", error)
        if isinstance(error, EngineGoneError | EngineTimeoutError):
            self._roster.apply(
                key, lambda member: membership.silent(member, now=member.last_seen, lost_after_seconds=0.0)
            )
        elif isinstance(error, FencedOffError):
            self._roster.apply(key, membership.died)
        else:
            self._roster.apply(key, lambda member: membership.distrusted(member, now=time.monotonic()))

    async def changed(self, *, timeout_seconds: float) -> None:
        """Return at the next change of the fleet, or after the timeout."""
        await self._roster.changed(timeout_seconds=timeout_seconds)

    # --- inside ---

    @property
    def sampling(self) -> tuple[float, int]:
        """Temperature and token limit of every request."""
        return self._settings.temperature, self._settings.max_tokens

    def client(self, member: Member) -> EngineClient:
        """Calls to the process of a member."""
        return self._roster.client(member)

    def check_fresh(self, rollouts: list[Rollout]) -> list[Rollout]:
        """Refuse completions of a call when other weights than the newest had a part in one of them."""
        for rollout in rollouts:
            for span in rollout.versions:
                if span.version != self._roster.newest:
                    self.num_stale_answers += len(rollouts)
                    raise BadAnswerError(
                        f"engine {rollout.engine} sampled with weights {span.version}, "
                        f"not {self._roster.newest}"
                    )
        return rollouts

    async def _watch(self) -> None:
        while True:
            await self._roster.refresh()
            await self._forget_the_lost()
            self._start_syncs(is_called=False)
            await asyncio.sleep(self._settings.heartbeat_seconds)

    def _check_watcher(self) -> None:
        """Raise what ended the watcher: without it nobody would notice that an engine is lost or back."""
        if self._watcher.done():
            self._watcher.result()

    async def _forget_the_lost(self) -> None:
        present = {m.instance for m in self._roster.members() if m.state != MemberState.LOST}
        for instance in self._syncs.keys() - present - self._tasks.keys():
            await self._syncs.pop(instance).close()

    def _start_syncs(self, *, is_called: bool) -> set[asyncio.Task[None]]:
        """Begin to sync who needs it. A call for new weights takes everyone whose last sync was good.

        Returns the syncs worth waiting for: not those of engines whose last one failed, which may well take
        until the deadline again.
        """
        started: set[asyncio.Task[None]] = set()
        if self._job is None:
            return started
        now = time.monotonic()
        for member in self._roster.members():
            is_due = now >= member.retry_at or (is_called and member.num_failures == 0)
            if member.state == MemberState.STALE and is_due and member.instance not in self._tasks:
                task = asyncio.ensure_future(self._sync_one(member, self._job))
                self._tasks[member.instance] = task
                self._roster.busy.add(member.instance)
                if member.num_failures == 0:
                    started.add(task)
        return started

    async def _sync_one(self, member: Member, job: SyncJob) -> None:
        key = member.instance
        sync = self._syncs.get(key)
        if sync is None:
            sync = EngineSync(
                self._roster.client(member),
                backend=BACKENDS[self._settings.backend],
                timeout_seconds=self._settings.sync_timeout_seconds,
            )
            self._syncs[key] = sync
        try:
            report = await sync.run(job)
        except Exception as error:
            # Whatever it is ends here: the engine leaves the fleet, and the cause is told when none is left.
            if not isinstance(error, SyncFailedError):
                log.exception("an error nobody foresaw in the sync of engine %s", member.label)
            log.warning("engine %s did not get weights %s: %s", member.label, job.version, error)
            self._failures[member.label] = str(error) or type(error).__name__
            self._roster.apply(key, lambda found: membership.failed_sync(found, now=time.monotonic()))
            await self._revoke(member)
        else:
            newest = self._roster.newest or job.version
            if job.version == newest:
                self._reports[member.label] = report
            self._roster.apply(
                key,
                lambda found: membership.synced(found, job.version, newest=newest, now=time.monotonic()),
            )
        finally:
            self._tasks.pop(key, None)
            self._roster.busy.discard(key)
            self._roster.wake()

    async def _revoke(self, member: Member) -> None:
        try:
            await self._roster.client(member).revoke(timeout_seconds=_REVOKE_TIMEOUT_SECONDS)
        except EngineError as error:
            # it is out of our fleet in any case; this only keeps its pod from looking ready
            log.info("engine %s could not be told that it is out of service: %s", member.label, error)

    def _is_enough(self, is_first: bool, in_first_round: set[asyncio.Task[None]], *, waited: float) -> bool:
        self._check_watcher()
        settings = self._settings
        num_current = self.counts().current
        if num_current == 0:
            if waited > settings.empty_wait_seconds:
                why = "; ".join(f"{label}: {text}" for label, text in self._failures.items())
                raise RolloutLostError(
                    f"no rollout engine could be given weights for {settings.empty_wait_seconds:g} s"
                    + (f" ({why})" if why else "")
                )
            return False
        if is_first:
            return num_current >= settings.desired or waited > settings.start_wait_seconds
        return all(task.done() for task in in_first_round)

    def _report(self, version: PolicyVersion, num_bytes: int, *, pack_seconds: float) -> SyncReport:
        phase_seconds = {"pack": pack_seconds}
        for report in self._reports.values():
            for phase, seconds in report.phase_seconds.items():
                phase_seconds[phase] = max(seconds, phase_seconds.get(phase, 0.0))
        return SyncReport(
            version=version,
            synced=tuple(sorted(self._reports)),
            failed=dict(self._failures),
            num_bytes=num_bytes,
            phase_seconds=phase_seconds,
            max_probe_error=max((report.probe_error for report in self._reports.values()), default=0.0),
        )


class EngineWorker:
    """A Current engine as the dispatch sees it."""

    def __init__(self, fleet: FleetCore, member: Member) -> None:
        self.key = member.instance
        self._fleet = fleet
        self._member = member

    async def sample(self, bundle: Bundle) -> list[Rollout]:
        """Its completions, with the newest weights or not at all."""
        temperature, max_tokens = self._fleet.sampling
        body = sampling_body(bundle, temperature=temperature, max_tokens=max_tokens)
        # no deadline: how long a completion takes is the user's choice, and the watcher sees a dead engine
        answer = await self._fleet.client(self._member).generate(body, timeout_seconds=None)
        rollouts = parse_rollouts(answer, bundle=bundle, engine=self._member.label)
        return self._fleet.check_fresh(rollouts)
