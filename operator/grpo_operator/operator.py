"""Puts the operator together and runs it until it is asked to stop."""

import asyncio
import logging
import signal
from collections.abc import Coroutine
from functools import partial
from importlib.metadata import version
from typing import Any

import aiohttp

from grpo_api.contract.reasons import Reason
from grpo_operator.apply.refusals import explain_refusal
from grpo_operator.children.gangs import GANG_SCHEDULERS
from grpo_operator.cluster import errors
from grpo_operator.cluster.client import Client, Listing
from grpo_operator.cluster.kinds import JOBS, WATCHED, WORKLOADS, Kind, KubeObject
from grpo_operator.cluster.lease import Lease, own_identity
from grpo_operator.cluster.watch import watch
from grpo_operator.controller import Controller
from grpo_operator.health import Health, serve
from grpo_operator.metrics import OperatorMetrics
from grpo_operator.observe.cache import Cache, Key, job_key
from grpo_operator.observe.namespaces import NamespaceFilter
from grpo_operator.observe.pod_events import EventReader
from grpo_operator.observe.process_state import ProcessState
from grpo_operator.observe.progress_poller import Poller, choose_fetch
from grpo_operator.observe.served_schema import ServedSchema, compare
from grpo_operator.observe.stored import Stored
from grpo_operator.settings import Settings
from grpo_operator.work_queue import Urgency, WorkQueue, is_starting, urgency_of

log = logging.getLogger(__name__)

_MISSED_RESYNCS = 4
_FIRST_RESYNC_RETRY_SECONDS = 2.0
_NO_KUEUE = (
    "this operator does not look at Kueue: its administrator sets kueue.enabled=true of the chart "
    "(--kueue=true)"
)
_KUEUE_SECONDS = 10.0
"""How often an operator looks for Kueue in a cluster that does not have it: no watch tells of its arrival."""
_STARTING_SECONDS = 0.5
"""The pods of a job that starts change many times within a second: they are looked at together."""


class Operator:
    """One operator process: cache, queue, controller, poller and watch around one client."""

    def __init__(
        self, client: Client, settings: Settings, session: aiohttp.ClientSession, *, metrics: OperatorMetrics
    ) -> None:
        self._client = client
        self._metrics = metrics
        self._settings = settings
        self._cache = Cache()
        state = ProcessState()
        self._controller = Controller(
            client,
            self._cache,
            state,
            runtime_image=settings.runtime_image,
            has_network_policies=settings.has_network_policies,
            reports_from=settings.reports_from,
            give_back=settings.give_back,
            permissions=settings.permissions,
            clock=client.clock,
            metrics=metrics,
        )
        self._queue = WorkQueue(
            metrics.timed(self._controller.reconcile),
            on_error=_log_failure,
            ends_with=(errors.VersionsWentBack,),
            urgency_of=self._urgency_of,
        )
        self._poller = Poller(
            self._cache,
            state,
            choose_fetch(settings.progress, client, session),
            wake=self._wake,
            seconds=settings.poll_seconds,
            clock=client.clock,
            on_poll=metrics.count_poll,
        )
        self._events = EventReader(client, self._cache, wake=self._wake)
        self._filter = None
        if settings.namespace_selector:
            self._filter = NamespaceFilter(client, self._cache, settings.namespace_selector, wake=self._wake)
        self._pod_groups = tuple(
            scheduler.kind
            for gang, scheduler in GANG_SCHEDULERS.items()
            if settings.permissions.allows_gang(gang)
        )
        self._has_kueue = settings.has_kueue
        if not settings.has_kueue:
            self._cache.queue_problems[None] = _NO_KUEUE
        self._unlisted: set[tuple[Kind, str | None]] = set()
        """PodGroups that could not be listed, by kind and namespace."""
        self._health = Health(limit_seconds=_MISSED_RESYNCS * settings.resync_seconds)
        self._left_out: set[str | None] = set()
        self._listed_at: dict[str | None, int] = {}
        """The version of the last lists by namespace."""
        self._served: KubeObject | None = None
        self._stop = asyncio.Event()
        self._lease = None
        if settings.lease is not None:
            namespace, name = settings.lease
            self._lease = Lease(client, namespace=namespace, name=name, identity=own_identity())

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT. Raises KubernetesError when the cluster refuses the first lists, and
        when the Lease is lost."""
        # As process 1 of a container we get neither signal unless a handler is installed.
        _stop_on_signals(self._stop)
        await _until_one_ends(self._stop.wait(), self._serve())
        log.info("stopped")

    async def _serve(self) -> None:
        # Before the Lease is asked for: a standby without the rights to take over must not seem ready.
        await self._first_resync()
        server = None
        if self._settings.health_port is not None:
            registry = self._metrics.registry
            server = await serve(self._health, registry, port=self._settings.health_port)
        try:
            if self._lease is None:
                await self._work()
            else:
                await self._work_while_leading(self._lease)
        finally:
            if server is not None:
                await server.cleanup()

    async def _work_while_leading(self, lease: Lease) -> None:
        """Wait for the Lease, then work as long as it is ours. It is renewed from the first moment on."""
        try:
            await lease.acquire(on_look=self._health.mark_success)
            await _until_one_ends(lease.hold(), self._resync_and_work())
        finally:
            await lease.release()

    async def _resync_and_work(self) -> None:
        # What was listed before the wait for the Lease is old.
        await self._first_resync()
        await self._work()

    async def _work(self) -> None:
        log.info("watching %s", ", ".join(self._settings.namespaces) or "all namespaces")
        if self._settings.has_network_policies and self._settings.reports_from is None:
            log.info("every pod may read progress and metrics of jobs: --reports-from names who may")
        self._metrics.mark_leader(self._cache, self._queue)
        stop, started = asyncio.Event(), asyncio.Event()
        signals = asyncio.create_task(_handle_signals_again(started, self._stop), name="signals")
        work = [
            asyncio.create_task(
                self._queue.run(
                    num_workers=self._settings.num_workers, num_starting=self._settings.num_starting
                ),
                name="workers",
            ),
            asyncio.create_task(self._poller.run(), name="poller"),
            asyncio.create_task(self._events.run(), name="events"),
            asyncio.create_task(self._resync_regularly(), name="resync"),
        ]
        if self._filter is not None:
            work.append(asyncio.create_task(self._filter.run(), name="namespaces"))
        if self._has_kueue:
            work += [
                asyncio.create_task(self._follow_workloads(namespace), name="workloads")
                for namespace in self._settings.namespaces or (None,)
            ]
        watching = asyncio.create_task(
            watch(
                # kopf stops altogether when it may not watch one namespace: the resync alone covers those.
                namespaces=tuple(name for name in self._settings.namespaces if name not in self._left_out),
                credentials=self._client.credentials,
                on_event=self.take_in,
                stop=stop,
                started=started,
            ),
            name="watch",
        )
        try:
            done, _ = await asyncio.wait([*work, watching], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            raise errors.KubernetesError("the watch of the cluster has ended by itself")
        finally:
            stop.set()
            for task in (*work, signals):
                task.cancel()
            await asyncio.gather(*work, signals, watching, return_exceptions=True)

    @property
    def served_schema(self) -> ServedSchema:
        """What the last resync found that the CRD of the cluster lacks."""
        return self._cache.served_schema

    def _wake(self, key: Key) -> None:
        """Put a job into the queue to which something has happened."""
        self._metrics.mark_event(key)
        self._queue.add(key)

    def _urgency_of(self, key: Key) -> Urgency:
        return urgency_of(self._cache.job(key))

    def take_in(self, kind: Kind, event: str | None, item: KubeObject) -> None:
        """Put a watch event into the cache and the job it belongs to into the queue."""
        key = job_key(kind, item)
        if key is None:
            return
        if event == "DELETED":
            self._cache.remove(kind, item)
        elif not self._cache.put(kind, item):
            return
        if kind != JOBS and event != "DELETED" and is_starting(self._cache.job(key)):
            self._metrics.mark_event(key)
            self._queue.add_after(key, _STARTING_SECONDS)
        else:
            self._wake(key)

    async def resync(self) -> None:
        """List every kind once, which finds what the watch missed. The jobs that changed go into the queue.

        Of several namespaces, those that may not be listed are left out. Raises Forbidden when none may be
        listed.
        """
        await self._compare_schema()
        namespaces: tuple[str | None, ...] = self._settings.namespaces or (None,)
        refused: dict[str | None, errors.Forbidden] = {}
        for namespace in namespaces:
            try:
                listings = {kind: await self._list(kind, namespace) for kind in WATCHED}
            except errors.Forbidden as error:
                refused[namespace] = error
                continue
            listings |= await self._list_pod_groups(namespace)
            listings |= await self._list_workloads(namespace)
            listed_at = min(listing.resource_version for listing in listings.values())
            errors.require_no_step_back(listed_at, known=self._listed_at.get(namespace, 0))
            self._listed_at[namespace] = listed_at
            for kind, listing in listings.items():
                self._take_in_list(kind, listing, namespace)
        if len(refused) == len(namespaces):
            raise next(iter(refused.values()))
        self._log_left_out(refused)
        if self._filter is not None:
            self._filter.log_left_out()
        self._cache.cluster_objects.clear()
        self._cache.forget_deleted_uids()
        self._health.mark_success()

    async def _compare_schema(self) -> None:
        """See what the CRD lacks. Somebody may have installed another one since the last time. It only feeds
        a note on the jobs, so a failure is logged, and the next resync tries again."""
        try:
            served = await self._client.schema(JOBS)
        except errors.KubernetesError as error:
            log.warning("the schema of GRPOJob cannot be read: %s", error)
            return
        if served == self._served:
            return
        self._served = served
        found = compare(served, release=version("grpo-operator"))
        if found.problem:
            log.warning("%s", found.problem)
        self._cache.served_schema = found

    async def _list(self, kind: Kind, namespace: str | None) -> Listing[Stored]:
        try:
            return await self._client.list(kind, namespace, keep=partial(self._cache.keep, kind))
        except errors.NotFound as error:
            hint = ": install the CRD (it comes with the Helm chart)" if kind == JOBS else ""
            raise errors.KubernetesError(f"the cluster does not know {kind.plural}{hint}") from error

    async def _list_pod_groups(self, namespace: str | None) -> dict[Kind, Listing[Stored]]:
        """The PodGroups that may be listed. Without the others all jobs but theirs work as ever, and theirs
        say why they wait once a PodGroup is to be made."""
        found = {}
        for kind in self._pod_groups:
            try:
                found[kind] = await self._client.list(kind, namespace, keep=partial(self._cache.keep, kind))
                self._unlisted.discard((kind, namespace))
            except (errors.NotFound, errors.Forbidden) as error:
                if (kind, namespace) not in self._unlisted:
                    log.warning("PodGroups of %s cannot be listed: %s", kind.api_version, error)
                self._unlisted.add((kind, namespace))
        return found

    async def _list_workloads(self, namespace: str | None) -> dict[Kind, Listing[Stored]]:
        """The Workloads, where jobs may have some. Without them those jobs stay as they are and say why."""
        if not self._has_kueue:
            return {}
        known = self._cache.queue_problems.get(namespace, "")
        try:
            keep = partial(self._cache.keep, WORKLOADS)
            found = await self._client.list(WORKLOADS, namespace, keep=keep)
        except (errors.NotFound, errors.Forbidden, errors.ServerFailed) as error:
            # also where a webhook of Kueue is down, which converts what another release of it has stored
            why = explain_refusal(error, kind=WORKLOADS, name="of the job").why
            is_known = why.reason == Reason.QUEUE_UNAVAILABLE
            problem = why.message if is_known else f"Workloads cannot be listed: {error}"
            problem += f"; the operator looks again every {_KUEUE_SECONDS:.0f} s"
            self._cache.queue_problems[namespace] = problem
            if problem != known:
                log.warning("Workloads cannot be listed: %s", error)
                self._plan_all(namespace)
            return {}
        if self._cache.queue_problems.pop(namespace, None):
            log.info("Workloads can be listed again")
            self._plan_all(namespace)
        return {WORKLOADS: found}

    def _plan_all(self, namespace: str | None) -> None:
        """Put every job of a namespace into the queue, or of all (None)."""
        for key in self._cache.job_keys():
            if namespace in (None, key[0]):
                self._wake(key)

    async def _follow_workloads(self, namespace: str | None) -> None:
        """Take in what happens to Workloads, with a list before each watch. What ends a watch ends no other
        one, and a cluster without Kueue is asked again every few seconds."""
        while True:
            wait = _KUEUE_SECONDS
            try:
                listed = (await self._list_workloads(namespace)).get(WORKLOADS)
                if listed is not None:
                    self._take_in_list(WORKLOADS, listed, namespace)
                    since, wait = listed.resource_version, 0.0
                    async for event, item in self._client.follow(WORKLOADS, namespace, since=since):
                        self.take_in(WORKLOADS, event, item)
            except errors.KubernetesError as error:
                log.debug("the watch of Workloads has ended: %s", error)
                wait = _FIRST_RESYNC_RETRY_SECONDS
            await asyncio.sleep(wait)

    def _take_in_list(self, kind: Kind, listing: Listing[Stored], namespace: str | None) -> None:
        version = listing.resource_version
        for key in self._cache.replace(kind, listing.items, namespace=namespace, listed_at=version):
            self._wake(key)

    def _log_left_out(self, refused: dict[str | None, errors.Forbidden]) -> None:
        """Log once that a namespace is left out, and once that it no longer is."""
        for namespace in refused.keys() - self._left_out:
            log.warning("namespace %s is left out until it may be listed: %s", namespace, refused[namespace])
        for namespace in self._left_out - refused.keys():
            log.info("namespace %s may be listed again", namespace)
        self._left_out = set(refused)

    async def _first_resync(self) -> None:
        """List everything before anything is decided. Waits for an API server that does not answer yet."""
        while True:
            try:
                if self._filter is not None:
                    await self._filter.look()
                return await self.resync()
            except errors.Transient as error:
                log.warning("%s; next try in %.0f s", error, _FIRST_RESYNC_RETRY_SECONDS)
                await asyncio.sleep(_FIRST_RESYNC_RETRY_SECONDS)

    async def _resync_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._settings.resync_seconds)
            try:
                await self.resync()
            except errors.VersionsWentBack:
                raise
            except errors.KubernetesError as error:
                # The liveness probe ends a process whose resyncs fail for long; a short outage must not end
                # it.
                log.warning("resync failed: %s", error)
                continue
            for key in self._cache.job_keys():
                self._queue.add(key, Urgency.ROUTINE)


async def _until_one_ends(*jobs: Coroutine[Any, Any, object]) -> None:
    """Run all of these until one of them ends, then cancel the others. Raises what that one raised."""
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _handle_signals_again(started: asyncio.Event, stop: asyncio.Event) -> None:
    """Install our handlers of SIGTERM and SIGINT again: kopf installs its own before it sets `started`. With
    those, kopf would wait seconds for our tasks before we learn of the signal."""
    await started.wait()
    _stop_on_signals(stop)


def _stop_on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


def _log_failure(key: Key, error: Exception, delay_seconds: float) -> None:
    is_ours = isinstance(error, errors.KubernetesError)
    log.warning(
        "%s/%s: %s; next try in %.1f s", *key, error, delay_seconds, exc_info=None if is_ours else error
    )


async def run_operator(settings: Settings) -> None:
    """Connect and run. Raises KubernetesError naming what is wrong with the cluster or the rights."""
    metrics = OperatorMetrics()
    client = await Client.connect(
        kubeconfig=settings.kubeconfig, context=settings.context, on_answer=metrics.count_request
    )
    try:
        async with aiohttp.ClientSession() as session:
            await Operator(client, settings, session, metrics=metrics).run()
    finally:
        await client.close()
