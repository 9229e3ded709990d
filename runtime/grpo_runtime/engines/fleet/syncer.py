"""Which engines of a fleet are given the newest weights, when, and with whom.

A call for new weights begins a sync with every engine that needs them; the watcher does the same all the time
for engines that join, also in the middle of a step, and for those whose last sync failed, ever less often.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_api.contract.versions import PolicyVersion
from grpo_api.v1alpha1.spec import PauseMode
from grpo_runtime.engines.fleet import membership
from grpo_runtime.engines.fleet.engine_sync import EngineSync, EngineSyncReport, SyncFailedError, SyncJob
from grpo_runtime.engines.fleet.membership import Member, MemberState
from grpo_runtime.engines.fleet.roster import Roster
from grpo_runtime.engines.fleet.settings import KEEP, Pause
from grpo_runtime.errors import SupersededError
from grpo_runtime.rollouts.interface import EngineError, EngineTimeoutError, FailedSyncs, Probe, SyncReport
from grpo_runtime.weight_sync.deadlines import Deadlines
from grpo_runtime.weight_sync.interface import Backend, Reach, TooSlowError, WeightSyncError
from grpo_runtime.weight_sync.source import WeightSource

log = logging.getLogger(__name__)

_REVOKE_TIMEOUT_SECONDS = 5.0


class FleetSyncer:
    """Gives the members of a roster the weights of the newest `prepare`."""

    def __init__(
        self,
        roster: Roster,
        *,
        backend: Backend[Any],
        timeout_seconds: float,
        workers_per_engine: int,
        cores_per_engine: int,
        is_asynchronous: bool = False,
        pause: Pause = KEEP,
    ) -> None:
        if backend.reach is Reach.PROCESS:
            raise ValueError(f"{backend.name} weight sync does not reach engines in other processes")
        self._roster = roster
        self._backend = backend
        self._deadlines = Deadlines(timeout_seconds)
        self._workers_per_engine = workers_per_engine
        self._cores_per_engine = cores_per_engine
        self._transfers_first = is_asynchronous and backend.receives_while_serving
        self._pause = pause
        self._has_weights = False
        self._job: SyncJob | None = None
        self._syncs: dict[frozenset[str], EngineSync] = {}
        """Syncs by the instances of the engines that share a sender."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """The running sync of an instance."""
        self._reports: dict[str, EngineSyncReport] = {}
        self._failed: Mapping[str, FailedSyncs] = {}
        """Another mapping at each change, because it is read in another thread."""
        self._prepare_seconds = 0.0
        self._write_seconds: float | None = None
        """How long writing the newest weights took, where they are written before engines are called."""

    @property
    def has_weights(self) -> bool:
        """Whether there are weights to give."""
        return self._has_weights

    @property
    def failed(self) -> Mapping[str, FailedSyncs]:
        """The failed syncs of engines by their label, also of one that has been restarted since."""
        return self._failed

    async def prepare(self, weights: WeightSource, *, version: PolicyVersion, probe: Probe | None) -> None:
        """Make these the newest weights. From now on no engine is Current until it has them.

        They are still being copied when this returns: `wait_until_read` before they change.
        """
        self._deadlines.new_weights()
        self._prepare_seconds, self._write_seconds = 0.0, None
        self._job = None  # its memory is used again where no sync reads it
        prepared = await asyncio.to_thread(self._backend.prepare, weights)
        if self._backend.name_version is not None:
            self._backend.name_version(prepared, version)
        self._job = SyncJob(version=version, weights=prepared, probe=probe)
        self._has_weights = True
        self._reports = {}
        self._roster.new_version(version, still_serve=self._transfers_first)

    async def wait_until_read(self) -> None:
        """Wait until the newest weights are copied, for engines that join later. Raises what reading them
        raised."""
        if self._job is not None:
            self._prepare_seconds = await asyncio.to_thread(self._job.weights.wait_until_read)

    async def wait_until_ready(self) -> None:
        """Wait until the newest weights can be given to engines. Raises SupersededError when a later attempt
        has begun; any other failure is that of the engines' syncs, which try again."""
        if self._job is not None:
            try:
                await self._ready(self._job)
            except SyncFailedError as error:
                log.warning("weights %s: %s", self._job.version, error)

    def start_syncs(self, *, is_called: bool) -> set[asyncio.Task[None]]:
        """Begin to sync the engines that need it. A call for new weights takes all whose last sync was good.

        Returns the syncs worth waiting for: not those of engines whose last one failed, which may well take
        until the deadline again, or that are too slow for the others.
        """
        started: set[asyncio.Task[None]] = set()
        if self._job is None:
            return started
        now = time.monotonic()
        due = [
            member
            for member in self._roster.members()
            if member.state == MemberState.STALE
            and member.instance not in self._tasks
            and (now >= member.retry_at or (is_called and member.num_failures == 0))
        ]
        for group in self._groups(due):
            task = asyncio.ensure_future(self._sync(group, self._job))
            self._tasks |= {member.instance: task for member in group}
            self._roster.busy.update(member.instance for member in group)
            if all(map(membership.shares_syncs, group)):
                started.add(task)
        return started

    async def forget_the_lost(self) -> None:
        """Close the senders to engines that are lost, and forget what failed at addresses that are gone."""
        labels = {member.label for member in self._roster.members()}
        self._failed = {label: failed for label, failed in self._failed.items() if label in labels}
        present = {m.instance for m in self._roster.members() if m.state != MemberState.LOST}
        for key in [key for key in self._syncs if not key <= present and not key & self._tasks.keys()]:
            # while one is closed, a new sync may have closed another
            if (sync := self._syncs.pop(key, None)) is not None:
                await sync.close()

    def report(self) -> SyncReport:
        """What became of the newest weights so far."""
        job = self._job
        if job is None:
            raise RuntimeError("there are no weights to report about: call prepare first")
        phase_seconds = {"pack": self._prepare_seconds}
        if self._write_seconds is not None:
            phase_seconds["write"] = self._write_seconds
        for report in self._reports.values():
            for phase, seconds in report.phase_seconds.items():
                phase_seconds[phase] = max(seconds, phase_seconds.get(phase, 0.0))
        weights, update_bytes = job.weights, self._backend.update_bytes
        return SyncReport(
            version=job.version,
            synced=tuple(sorted(self._reports)),
            failed={label: last.why for label, last in self._failed.items() if last.version == job.version},
            num_bytes=weights.num_bytes,
            phase_seconds=phase_seconds,
            num_bytes_sent=weights.num_bytes_sent,
            num_update_bytes=update_bytes(weights) if update_bytes is not None else None,
            paused_seconds=max((report.paused_seconds for report in self._reports.values()), default=None),
            max_probe_error=max((report.probe_error for report in self._reports.values()), default=0.0),
        )

    async def close(self) -> None:
        """End every sync and close every sender."""
        running = set(self._tasks.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for sync in self._syncs.values():
            await sync.close()

    def _groups(self, members: Sequence[Member]) -> list[list[Member]]:
        """Who shares a sender. An engine whose last sync failed never shares one: it may fail again. Nor does
        one that was too slow for others."""
        if not self._backend.is_collective:
            return [[member] for member in members]
        together = [member for member in members if membership.shares_syncs(member)]
        alone = [[member] for member in members if not membership.shares_syncs(member)]
        return [together, *alone] if together else alone

    async def _sync(self, group: Sequence[Member], job: SyncJob) -> None:
        try:
            try:
                await self._ready(job)
                outcomes = await (await self._sync_of(group)).run(job)
            except SupersededError as error:
                outcomes = dict.fromkeys(
                    (member.instance for member in group), SyncFailedError(f"write: {error}")
                )
            except Exception as error:
                outcomes = {member.instance: error for member in group}
            await asyncio.gather(*(self._finish(member, job, outcomes[member.instance]) for member in group))
        finally:
            for member in group:
                self._tasks.pop(member.instance, None)
                self._roster.busy.discard(member.instance)
            self._roster.wake()

    async def _ready(self, job: SyncJob) -> None:
        """Engines are not paused before this, and a slow store is never taken for a slow engine. Raises
        SyncFailedError and SupersededError."""
        if self._backend.wait_until_ready is None:
            return
        start = time.monotonic()
        try:
            await self._backend.wait_until_ready(job.weights, self._deadlines.timeout_seconds)
        except WeightSyncError as error:
            raise SyncFailedError(f"write: {error}") from error
        if job is self._job:
            self._write_seconds = max(time.monotonic() - start, self._write_seconds or 0.0)

    async def _sync_of(self, group: Sequence[Member]) -> EngineSync:
        """The sender of these engines; one that any of them shared with others is closed."""
        key = frozenset(member.instance for member in group)
        if key not in self._syncs:
            for other in [other for other in self._syncs if other & key]:
                if (sync := self._syncs.pop(other, None)) is not None:
                    await sync.close()
            clients = {member.instance: self._roster.client(member) for member in group}
            is_slow = any(member.syncs_alone for member in group)
            self._syncs[key] = EngineSync(
                clients,
                backend=self._backend,
                # it has all the time, and takes none from the others by what it needs
                deadlines=Deadlines(self._deadlines.timeout_seconds) if is_slow else self._deadlines,
                workers_per_engine=self._workers_per_engine,
                cores_per_engine=self._cores_per_engine,
                transfers_first=self._transfers_first,
                pause=self._pause,
                before_pause=self._before_pause,
            )
        return self._syncs[key]

    async def _before_pause(self, instance: str) -> None:
        """Give the engine no more work; with pauseMode Wait, return when it has finished what it has. Raises
        SyncFailedError for one that ends or is found hung meanwhile: to pause it would take until the
        deadline."""
        self._roster.apply(instance, membership.serves_no_more)
        if self._pause.mode is PauseMode.WAIT:
            before = self._roster.find(instance)
            # it computes, so it is looked at as one that does, and what it has is taken back where it hangs
            self._roster.busy.discard(instance)
            try:
                await self._roster.wait_until_answered(instance)
            finally:
                self._roster.busy.add(instance)
            after, gone = self._roster.find(instance), "it has ended or cannot be reached"
            if before is None or after is None or after.state is MemberState.LOST:
                raise SyncFailedError(gone)
            if after.num_failures > before.num_failures:
                raise SyncFailedError(after.why_last_hung or gone)

    async def _finish(self, member: Member, job: SyncJob, outcome: EngineSyncReport | Exception) -> None:
        now = time.monotonic()
        if isinstance(outcome, Exception):
            # every error ends here: the engine leaves the fleet, and `failed` keeps the cause
            if not isinstance(outcome, SyncFailedError):
                log.error("unexpected error in the sync of engine %s", member.label, exc_info=outcome)
            log.warning("engine %s did not get weights %s: %s", member.label, job.version, outcome)
            before = self._failed.get(member.label)
            last = FailedSyncs(
                num=before.num + 1 if before else 1,
                version=job.version,
                why=str(outcome) or type(outcome).__name__,
            )
            self._failed = {**self._failed, member.label: last}
            self._roster.apply(
                member.instance, lambda found: _after_failure(found, outcome, before=member, now=now)
            )
            await self._revoke(member)
            return
        self._failed = {label: last for label, last in self._failed.items() if label != member.label}
        self._roster.was_paused(member, seconds=outcome.paused_seconds)
        newest = self._roster.newest or job.version
        if job.version == newest:
            self._reports[member.label] = outcome
        self._roster.apply(
            member.instance, lambda found: membership.synced(found, job.version, newest=newest, now=now)
        )

    async def _revoke(self, member: Member) -> None:
        try:
            await self._roster.client(member).revoke(timeout_seconds=_REVOKE_TIMEOUT_SECONDS)
        except EngineError as error:
            # it is out of our fleet in any case; this only keeps its pod from looking ready
            log.info("engine %s could not be taken out of service: %s", member.label, error)


def _after_failure(member: Member, error: Exception, *, before: Member, now: float) -> Member:
    """The member after its sync failed. One that did not answer in time may be hung; it may refuse every
    later sync because this one has not ended in it. Where it was taken out of the fleet since the member
    `before`, that was the failure."""
    if member.num_failures > before.num_failures:
        return member
    causes = []
    cause: BaseException | None = error
    while cause is not None:
        causes.append(cause)
        cause = cause.__cause__
    if any(isinstance(cause, TooSlowError) for cause in causes):
        return membership.too_slow(member, now=now)
    if any(isinstance(cause, TimeoutError | EngineTimeoutError) for cause in causes):
        return membership.stopped_in_sync(member, f"it did not finish a weight sync: {error}", now=now)
    return membership.failed_sync(member, now=now)
