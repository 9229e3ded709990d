"""Puts the operator together and runs it until it is told to stop."""

import asyncio
import logging
import signal

import aiohttp

from grpo_operator import errors
from grpo_operator.cache import Cache, Key, job_key
from grpo_operator.client import Client
from grpo_operator.controller import Controller
from grpo_operator.health import Health, serve
from grpo_operator.kinds import JOBS, WATCHED, Kind, Manifest
from grpo_operator.lease import Lease, own_identity
from grpo_operator.memory import Memory
from grpo_operator.pod_events import EventReader
from grpo_operator.poller import Poller, choose_fetch
from grpo_operator.queue import WorkQueue
from grpo_operator.settings import Settings
from grpo_operator.transport import watch

log = logging.getLogger(__name__)

_MISSED_RESYNCS = 4
_FIRST_LOOK_SECONDS = 2.0


class Operator:
    """One operator process: cache, queue, controller, poller and transport around one client."""

    def __init__(self, client: Client, settings: Settings, session: aiohttp.ClientSession) -> None:
        self._client = client
        self._settings = settings
        self._cache = Cache()
        memory = Memory()
        self._controller = Controller(
            client,
            self._cache,
            memory,
            runtime_image=settings.runtime_image,
            has_network_policies=settings.has_network_policies,
        )
        self._queue = WorkQueue(self._controller.reconcile, on_error=_log_failure)
        self._poller = Poller(
            self._cache,
            memory,
            choose_fetch(settings.progress, client, session),
            wake=self._queue.add,
            seconds=settings.poll_seconds,
        )
        self._events = EventReader(client, self._cache, wake=self._queue.add)
        self._health = Health(limit_seconds=_MISSED_RESYNCS * settings.resync_seconds)
        self._stop = asyncio.Event()
        self._lease = None
        if settings.lease is not None:
            namespace, name = settings.lease
            self._lease = Lease(client, namespace=namespace, name=name, identity=own_identity())

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT. Raises KubernetesError when the cluster refuses a first look, and when
        the Lease is lost."""
        # Before the Lease: a standby that could not take over must not look ready.
        await self._first_look()
        server = None
        if self._settings.health_port is not None:
            server = await serve(self._health, port=self._settings.health_port)
        try:
            if self._lease is None:
                await self._work(lease=None)
            else:
                await self._work_while_leading(self._lease)
        finally:
            if server is not None:
                await server.cleanup()
        log.info("stopped")

    async def _work_while_leading(self, lease: Lease) -> None:
        """Wait for the Lease, or until asked to stop, then work as long as it is ours."""
        _stop_on_signals(self._stop)
        candidacy = asyncio.create_task(lease.acquire(on_look=self._health.beat))
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([candidacy, stopping], return_when=asyncio.FIRST_COMPLETED)
            if candidacy.done():
                candidacy.result()
                await self._first_look()
                await self._work(lease=lease)
        finally:
            for task in (candidacy, stopping):
                task.cancel()
            await asyncio.gather(candidacy, stopping, return_exceptions=True)
            await lease.release()

    async def _work(self, *, lease: Lease | None) -> None:
        log.info("watching %s", ", ".join(self._settings.namespaces) or "all namespaces")
        stop, started = self._stop, asyncio.Event()
        work = [
            asyncio.create_task(self._queue.run(num_workers=self._settings.num_workers), name="workers"),
            asyncio.create_task(self._poller.run(), name="poller"),
            asyncio.create_task(self._events.run(), name="events"),
            asyncio.create_task(self._resync_for_ever(), name="resync"),
            asyncio.create_task(_stopped_by_signal(started, stop), name="signals"),
        ]
        if lease is not None:
            work.append(asyncio.create_task(lease.hold(), name="lease"))
        transport = asyncio.create_task(
            watch(
                namespaces=self._settings.namespaces,
                credentials=self._client.credentials,
                on_event=self.take_in,
                stop=stop,
                started=started,
            ),
            name="transport",
        )
        try:
            done, _ = await asyncio.wait([*work, transport], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if transport in done and not stop.is_set():
                raise errors.KubernetesError("the watch of the cluster has ended by itself")
        finally:
            stop.set()
            for task in work:
                task.cancel()
            await asyncio.gather(*work, transport, return_exceptions=True)

    def take_in(self, kind: Kind, event: str | None, item: Manifest) -> None:
        """A watch event: the cache learns it, and the job it belongs to is looked at."""
        key = job_key(kind, item)
        if key is None:
            return
        if event == "DELETED":
            self._cache.remove(kind, item)
            self._queue.add(key)
        elif self._cache.put(kind, item):
            self._queue.add(key)

    async def resync(self) -> None:
        """List every kind once, which finds what the watch missed; wakes the jobs that changed."""
        namespaces: tuple[str | None, ...] = self._settings.namespaces or (None,)
        for kind in WATCHED:
            try:
                listings = [await self._client.list(kind, namespace) for namespace in namespaces]
            except errors.NotFound as error:
                hint = ": install the CRD (it comes with the Helm chart)" if kind == JOBS else ""
                raise errors.KubernetesError(f"the cluster does not know {kind.plural}{hint}") from error
            changed: set[Key] = set()
            for namespace, listing in zip(namespaces, listings, strict=True):
                changed |= self._cache.replace(
                    kind, listing.items, namespace=namespace, listed_at=listing.resource_version
                )
            for key in changed:
                self._queue.add(key)
        self._cache.forget_tombstones()
        self._health.beat()

    async def _first_look(self) -> None:
        """List everything before anything is decided; waits for an API server that is still starting."""
        while True:
            try:
                return await self.resync()
            except errors.Transient as error:
                log.warning("%s; next try in %.0f s", error, _FIRST_LOOK_SECONDS)
                await asyncio.sleep(_FIRST_LOOK_SECONDS)

    async def _resync_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.resync_seconds)
            try:
                await self.resync()
            except errors.KubernetesError as error:
                # Liveness ends a process that cannot see its cluster for long; a short outage must not.
                log.warning("resync failed: %s", error)
                continue
            for key in self._cache.job_keys():
                self._queue.add(key)


async def _stopped_by_signal(started: asyncio.Event, stop: asyncio.Event) -> None:
    """Return when SIGTERM or SIGINT comes.

    kopf's own handlers, set before `started`, would have it wait seconds for our tasks before we hear of it.
    """
    await started.wait()
    _stop_on_signals(stop)
    await stop.wait()


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
    client = await Client.connect(kubeconfig=settings.kubeconfig, context=settings.context)
    try:
        async with aiohttp.ClientSession() as session:
            await Operator(client, settings, session).run()
    finally:
        await client.close()
