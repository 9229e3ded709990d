"""What a fleet does: it keeps engines' weights new and gives them work. Runs in one event loop of its own.

A watcher looks at every address all the time. An engine that joins is synced with the newest weights before
it serves; one that is lost is left out, and its requests go to others.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from grpo_api.contract.progress import EngineCounts
from grpo_api.contract.versions import PolicyVersion
from grpo_api.v1alpha1.spec import PauseMode, SamplingSpec
from grpo_runtime.engines.fleet import membership
from grpo_runtime.engines.fleet.dispatch import Dispatch, DispatchLimits
from grpo_runtime.engines.fleet.engine_calls import (
    AnswerLimits,
    BadAnswerError,
    Bundle,
    bundle,
    num_recomputed,
    read_rollouts,
    require_versions,
    sampling_call,
)
from grpo_runtime.engines.fleet.engine_client import EngineConflictError, open_session
from grpo_runtime.engines.fleet.membership import Member, MemberState
from grpo_runtime.engines.fleet.roster import Roster
from grpo_runtime.engines.fleet.settings import FleetSettings
from grpo_runtime.engines.fleet.syncer import FleetSyncer
from grpo_runtime.rollouts.interface import (
    EngineError,
    EngineGoneError,
    EngineTimeoutError,
    FailedSyncs,
    GenerateRequest,
    Generation,
    OnFinished,
    OnRead,
    Probe,
    Recomputed,
    Rollout,
    RolloutLostError,
    SyncReport,
)
from grpo_runtime.weight_sync.interface import Backend
from grpo_runtime.weight_sync.source import WeightSource

log = logging.getLogger(__name__)

_OF_WHOLE_COMPLETIONS = ("structured_outputs", "presence_penalty", "frequency_penalty")
"""Of vLLM's parameters those for which it makes a difference where the prompt ends and the completion
begins."""


class FleetCore:
    """`Engines` over HTTP. Made inside the event loop it is used in; looks for engines at once."""

    def __init__(self, settings: FleetSettings, *, backend: Backend[Any]) -> None:
        self.num_stale_answers = 0
        """Completions thrown away because weights had sampled them that may not."""
        self.num_recomputed_tokens = 0
        """Tokens that engines computed again because weights changed within a completion, or another engine
        went on with it."""
        self._settings = settings
        # taken once, so that the date at which an engine was found hung is the same in every report
        self._clock_offset = time.time() - time.monotonic()
        self._vocab_size: int | None = None
        self._answered_badly: set[str] = set()
        """Instances that answered what they cannot have sampled, and have not been verified since."""
        self._session = open_session()
        self._roster = Roster(settings, self._session)
        self._syncer = FleetSyncer(
            self._roster,
            backend=backend,
            timeout_seconds=settings.sync_timeout_seconds,
            workers_per_engine=settings.workers_per_engine,
            cores_per_engine=settings.cores_per_engine,
            is_asynchronous=settings.is_asynchronous,
            pause=settings.pause,
        )
        limits = DispatchLimits(
            max_in_flight=settings.max_in_flight,
            empty_wait_seconds=settings.empty_wait_seconds,
            poll_seconds=settings.heartbeat_seconds,
        )
        self._dispatch = Dispatch(
            self,
            limits=limits,
            clock=time.monotonic,
            num_tokens=self._num_tokens if settings.is_asynchronous else None,
        )
        self._watcher = asyncio.ensure_future(self._watch())

    @property
    def num_resent(self) -> int:
        """Samples asked of another engine because the first one failed or was lost."""
        return self._dispatch.num_resent

    @property
    def num_handed_over(self) -> int:
        """How often a sample went on from the tokens that an engine had handed over."""
        return self._dispatch.num_handed_over

    @property
    def recomputed(self) -> Recomputed:
        """What engines have computed again so far."""
        return Recomputed(num_tokens=self.num_recomputed_tokens, num_preemptions=self._roster.num_preemptions)

    @property
    def num_lost(self) -> int:
        """Engine processes lost so far."""
        return self._roster.num_lost

    def counts(self) -> EngineCounts:
        """Engines by state, as of now."""
        members = self._roster.members()
        hung = membership.reported_hung(
            members,
            now=time.monotonic(),
            reported_after_seconds=self._settings.hung_reported_after_seconds,
            clock_offset=self._clock_offset,
        )
        return membership.count(members, desired=self._settings.desired, hung=hung)

    async def sync(
        self,
        weights: WeightSource,
        *,
        version: PolicyVersion,
        probe: Probe | None,
        on_read: OnRead | None = None,
    ) -> SyncReport:
        """Give every engine that can be reached the weights; see `Engines.sync`.

        An engine whose last sync failed is left to the watcher, which tries it ever less often.
        """
        is_first = not self._syncer.has_weights
        self._vocab_size = probe.vocab_size if probe is not None else None
        started = time.monotonic()
        await self._syncer.prepare(weights, version=version, probe=probe)
        first_round = self._syncer.start_syncs(is_called=True)
        await self._syncer.wait_until_read()
        if on_read is not None:
            on_read()
        writing = time.monotonic()
        await self._syncer.wait_until_ready()
        # no engine can be given weights before, so that none is missed until then
        started += time.monotonic() - writing
        while not self._is_enough(is_first, first_round, waited_seconds=time.monotonic() - started):
            await self._roster.changed(timeout_seconds=self._settings.heartbeat_seconds)
        self._roster.require_newest()
        return self._syncer.report()

    async def generate(
        self, requests: Sequence[GenerateRequest], *, on_finished: OnFinished | None = None
    ) -> list[Rollout]:
        """Sample all requests, in the order given; see `Engines.generate`."""
        if not self._syncer.has_weights:
            raise RuntimeError("the fleet has no weights yet: call sync before generate")
        # also those that are not Current yet: they may join while the step runs
        num_engines = max(self._settings.desired, len(self.workers()))
        bundles = bundle(
            requests,
            num_engines=None if self._settings.is_asynchronous else num_engines,
            max_samples=self._settings.max_in_flight,
        )
        return await self._dispatch.run(bundles, on_finished=on_finished)

    def generation(self) -> Generation | None:
        """How far the running calls of `generate` have come. May be called in another thread."""
        found = self._dispatch.generation()
        if found is None:
            return None
        members = self._roster.members()
        labels = {member.instance: member.label for member in members}
        return replace(
            found,
            given={labels.get(key, key): number for key, number in found.given.items()},
            hung={member.label: member.why_hung for member in members if member.why_hung},
        )

    def take_idle_seconds(self) -> Mapping[str, float]:
        """Engine -> the seconds in which it could serve and had no call, or was paused, since they were last
        taken. May be called in another thread."""
        return self._roster.take_idle_seconds()

    def failed_syncs(self) -> Mapping[str, FailedSyncs]:
        """Engine -> its failed weight syncs, for engines that serve no more because of them. May be called in
        another thread."""
        return self._syncer.failed

    async def close(self) -> None:
        """Leave the engines as they are and let go of every connection."""
        self._watcher.cancel()
        await asyncio.gather(self._watcher, return_exceptions=True)
        await self._syncer.close()
        await self._roster.close()
        await self._session.close()

    # --- what Dispatch asks of a WorkerSource ---

    def workers(self) -> Mapping[str, "EngineWorker"]:
        """The engines that may be given work."""
        self._check_watcher()
        workers = {
            member.instance: EngineWorker(self, member)
            for member in self._roster.members()
            if member.may_serve
        }
        self._answered_badly.difference_update(workers)
        return workers

    def is_lost(self, key: str) -> bool:
        """Whether this process will not answer any more: it is gone, or out of the fleet."""
        member = self._roster.find(key)
        return member is None or not membership.will_answer(member)

    def mark_unhealthy(self, key: str, error: Exception) -> None:
        """Take an engine out of service until the watcher has seen it, or synced it, again."""
        log.warning("a request failed, it goes to another engine: %s", error)
        if isinstance(error, EngineGoneError | EngineTimeoutError):
            self._roster.apply(
                key,
                lambda member: membership.unanswered(member, now=member.last_seen, lost_after_seconds=0.0),
            )
        elif isinstance(error, EngineConflictError):
            self._roster.apply(key, membership.died)
        else:
            self._roster.apply(key, lambda member: membership.unhealthy(member, now=time.monotonic()))

    async def changed(self, *, timeout_seconds: float) -> None:
        """Return at the next change of the fleet, or after the timeout."""
        await self._roster.changed(timeout_seconds=timeout_seconds)

    @property
    def _hands_over(self) -> bool:
        return self._settings.pause.mode is PauseMode.ABORT

    def goes_on(self, bundle: Bundle) -> bool:
        """With pauseMode Abort, but not what an evaluation measures by one version, nor what is sampled by
        more than the tokens so far."""
        own = json.loads(bundle.own_parameters or "{}")
        is_free = own.keys().isdisjoint(_OF_WHOLE_COMPLETIONS)
        return self._hands_over and is_free and not bundle.is_evaluation

    async def hand_over(self, key: str) -> None:
        """Let an engine that is out of service answer with what it has sampled: the server of one that hangs
        may live without its core, and one that stops takes no calls any more and still answers those that it
        has. Nothing is taken of one that gave a bad answer."""
        if key in self._answered_badly:
            return
        member = self._roster.find(key)
        name = member.label if member is not None else "that is gone"
        limit = self._settings.hand_over_seconds
        try:
            async with asyncio.timeout(limit):
                if member is not None:
                    with contextlib.suppress(EngineGoneError):
                        await self._roster.client(member).hand_over(timeout_seconds=limit)
                await self._roster.wait_until_answered(key)
        except (EngineError, TimeoutError) as error:
            log.warning("engine %s hands over nothing more: %s", name, error or "it answers too late")

    async def sample(self, member: Member, bundle: Bundle) -> list[Rollout]:
        """The completions of a bundle by one engine, with the newest weights; in asynchronous training those
        to train on may begin with older ones, but with none before those of `member`.

        Raises BadAnswerError when other weights had a part in one of them, and EngineError.
        """
        settings, newest = self._settings, self._roster.newest
        sampling = self._sampling(bundle)
        # the weights before, whose completions may go on, must leave nothing in the cache for this one
        cache_salt = str(member.version) if settings.is_asynchronous else None
        call = sampling_call(bundle, sampling=sampling, cache_salt=cache_salt)
        max_tokens = (bundle.max_tokens or sampling.max_tokens) - len(bundle.ids_so_far)
        limits = AnswerLimits(max_tokens, self._vocab_size)
        max_bytes = limits.max_bytes(num_samples=bundle.num_samples)
        # no deadline: how long a completion takes is the user's choice, and the watcher sees
        # an engine that is dead or hung
        with self._roster.sampling(member.instance):
            client = self._roster.client(member)
            answer = await client.sample(call, max_bytes=max_bytes)
            try:
                # in a thread, because it may be large
                rollouts = await asyncio.to_thread(
                    read_rollouts, answer, bundle=bundle, engine=member.label, limits=limits
                )
            except BadAnswerError:
                self._answered_badly.add(member.instance)
                raise
        if not self._hands_over and any(rollout.is_aborted for rollout in rollouts):
            raise BadAnswerError(f"engine {member.label} ended a completion by abort")
        oldest = newest if bundle.is_evaluation else member.version
        try:
            require_versions(rollouts, allowed=self._allowed(oldest, is_evaluation=bundle.is_evaluation))
        except BadAnswerError:
            self.num_stale_answers += len(rollouts)
            self._answered_badly.add(member.instance)
            raise
        if settings.is_asynchronous:
            await self._wait_until_verified(member, rollouts)
            if not settings.pause.keeps_cache:
                self.num_recomputed_tokens += sum(map(num_recomputed, rollouts))
            if bundle.so_far is not None and rollouts[0].completion_ids:
                self.num_recomputed_tokens += len(bundle.prompt_ids) + len(bundle.ids_so_far)
        return rollouts

    def _allowed(self, oldest: PolicyVersion | None, *, is_evaluation: bool) -> Sequence[PolicyVersion]:
        """The weights that may have sampled an answer; `oldest` are those when it was asked for."""
        versions = self._roster.versions
        if not self._settings.is_asynchronous:
            return versions[-1:]
        begin = versions.index(oldest) if oldest is not None else 0
        return versions[begin : begin + 1] if is_evaluation else versions[begin:]

    def _sampling(self, bundle: Bundle) -> SamplingSpec:
        sampling = self._settings.evaluation if bundle.is_evaluation else self._settings.sampling
        assert sampling is not None
        return sampling

    def _num_tokens(self, bundle: Bundle) -> int:
        return bundle.num_tokens(max_tokens=self._sampling(bundle).max_tokens)

    async def _wait_until_verified(self, member: Member, rollouts: Sequence[Rollout]) -> None:
        """Return once the engine is verified with all weights that sampled its answer. Between those there is
        a moment in which it samples. Raises BadAnswerError when the verification fails."""
        found_versions = [rollout.versions[-1].version for rollout in rollouts if rollout.versions]
        if not found_versions or (member.version is not None and max(found_versions) <= member.version):
            # verified before it was asked, also where it has been found hung since
            return
        last = max(found_versions)
        while True:
            found = self._roster.find(member.instance)
            if found is None or found.version is None or not membership.will_answer(found):
                raise BadAnswerError(f"engine {member.label} is not verified with weights {last}")
            if found.version >= last:
                return
            await self._roster.changed(timeout_seconds=self._settings.heartbeat_seconds)

    async def _watch(self) -> None:
        while True:
            await self._roster.refresh()
            await self._syncer.forget_the_lost()
            self._syncer.start_syncs(is_called=False)
            await asyncio.sleep(self._settings.heartbeat_seconds)

    def _check_watcher(self) -> None:
        """Raise what ended the watcher: without it no lost engine and no new one would be noticed."""
        if self._watcher.done():
            self._watcher.result()

    def _is_enough(
        self, is_first: bool, first_round: set[asyncio.Task[None]], *, waited_seconds: float
    ) -> bool:
        """Whether `sync` may return. Raises RolloutLostError after the stated wait without an engine."""
        self._check_watcher()
        settings = self._settings
        num_current = sum(member.state == MemberState.CURRENT for member in self._roster.members())
        if num_current == 0:
            if waited_seconds > settings.empty_wait_seconds:
                why = "; ".join(f"{label}: {last.why}" for label, last in self._syncer.failed.items())
                raise RolloutLostError(
                    f"no rollout engine could be given weights for {settings.empty_wait_seconds:g} s"
                    + (f" ({why})" if why else "")
                )
            return False
        if is_first:
            return num_current >= settings.desired or waited_seconds > settings.start_wait_seconds
        return all(task.done() for task in first_round)


class EngineWorker:
    """An engine that may serve, as the dispatch sees it."""

    def __init__(self, fleet: FleetCore, member: Member) -> None:
        self.key = member.instance
        self._fleet = fleet
        self._member = member

    def may_take(self, bundle: Bundle) -> bool:
        """Whether its weights are no older than those that sampled what there is of the bundle."""
        so_far, version = bundle.so_far, self._member.version
        return so_far is None or (version is not None and version >= so_far.versions[-1].version)

    async def sample(self, bundle: Bundle) -> list[Rollout]:
        """Its completions, with weights that may sample them or not at all."""
        return await self._fleet.sample(self._member, bundle)
