"""The operator's own metrics for Prometheus, at `/metrics` beside `/healthz`.

To add one, declare it in `OperatorMetrics` and run `make generate`. What happens is counted where it happens;
for what is so at the moment a function is asked at each scrape. No label says which job, namespace or pod it
was: there may be thousands of them, and Prometheus keeps a series for each.
"""

import time
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, disable_created_metrics

from grpo_api.v1alpha1.status import Phase
from grpo_operator.children.gangs import GANG_SCHEDULERS
from grpo_operator.cluster import errors
from grpo_operator.cluster.kinds import WATCHED, WORKLOADS
from grpo_operator.observe.cache import Cache, Key
from grpo_operator.observe.progress_poller import PollOutcome
from grpo_operator.status_delays import StatusDelays
from grpo_operator.work_queue import Handler, WorkQueue

_CACHED = (*WATCHED, WORKLOADS, *(scheduler.kind for scheduler in GANG_SCHEDULERS.values()))
"""Kinds that the cache has objects of."""
_RECONCILE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_STATUS_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class ReconcileOutcome(StrEnum):
    """How a reconcile ends."""

    OK = "ok"
    RETRIED = "retried"
    """A request to the API server failed."""
    FAILED = "failed"
    """Another error: a bug of the operator."""


class OperatorMetrics:
    """All metrics of one operator process, in a registry of their own. `monotonic` is a clock in seconds."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        # or each counter and histogram has another series with the time at which it was made
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._monotonic = monotonic
        self._delays = StatusDelays()
        self._build = Info(
            "grpo_operator_build", "Always 1, with the `version` of the operator.", registry=self.registry
        )
        self._is_leader = Gauge(
            "grpo_operator_is_leader",
            "1 in the operator that works. One that stands by has 0 here, and for jobs, queue and cache.",
            registry=self.registry,
        )
        self._jobs = Gauge("grpo_operator_jobs", "GRPOJobs by `phase`.", ["phase"], registry=self.registry)
        self._queue_depth = Gauge(
            "grpo_operator_queue_depth",
            "GRPOJobs that wait for a worker of the operator.",
            registry=self.registry,
        )
        self._queue_oldest_seconds = Gauge(
            "grpo_operator_queue_oldest_seconds",
            "How long the oldest of them has waited.",
            registry=self.registry,
        )
        self._reconcile_seconds = Histogram(
            "grpo_operator_reconcile_seconds",
            "Time of one reconcile of a job, by `outcome`: `ok`; `retried` after a request to the API server "
            "failed; `failed` with any other error, which is a bug and is tried again too.",
            ["outcome"],
            buckets=_RECONCILE_BUCKETS,
            registry=self.registry,
        )
        self._event_to_status_seconds = Histogram(
            "grpo_operator_event_to_status_seconds",
            "Time from the first event of a job that its status does not show to the write of the status "
            "that does. Events are those of a watch, and what a resync or a trainer's report tells. Those "
            "that change no status are not counted.",
            buckets=_STATUS_BUCKETS,
            registry=self.registry,
        )
        self._api_requests = Counter(
            "grpo_operator_api_requests",
            "Requests to the API server by `verb` and `resource`, as a Role names them, and by `code`: the "
            "HTTP status of the answer, or `error` where there was none. Watches are not counted, but for "
            "those of Workloads.",
            ["verb", "resource", "code"],
            registry=self.registry,
        )
        self._polls = Counter(
            "grpo_operator_polls",
            "Questions to trainers for their progress, by `outcome`: `ok`; `no_answer`; `unreadable`, such "
            "as that of another release; `other_job`, whose trainer has got the address.",
            ["outcome"],
            registry=self.registry,
        )
        self._cache_objects = Gauge(
            "grpo_operator_cache_objects",
            "Objects that the operator has in memory, by `kind`.",
            ["kind"],
            registry=self.registry,
        )
        self._build.info({"version": version("grpo-operator")})
        # Prometheus sees no rise of a series that begins with its first event.
        for outcome in ReconcileOutcome:
            self._reconcile_seconds.labels(outcome.value)
        for poll in PollOutcome:
            self._polls.labels(poll.value)
        for phase in Phase:
            self._jobs.labels(phase.value)
        for name in sorted({kind.name for kind in _CACHED}):
            self._cache_objects.labels(name)

    def mark_leader(self, cache: Cache, queue: WorkQueue) -> None:
        """This process works from now on, with this cache and this queue."""
        self._delays.restart(now=self._monotonic())
        self._is_leader.set(1)
        self._queue_depth.set_function(lambda: queue.num_waiting)
        self._queue_oldest_seconds.set_function(lambda: queue.oldest_seconds)
        for phase in Phase:
            self._jobs.labels(phase.value).set_function(partial(_num_jobs, cache, phase))
        for name in {kind.name for kind in _CACHED}:
            self._cache_objects.labels(name).set_function(partial(_num_objects, cache, name))

    def timed(self, reconcile: Handler) -> Handler:
        """The same handler, whose time and outcome are counted."""

        async def measured(key: Key) -> float | None:
            began = self._monotonic()
            try:
                requeue_after = await reconcile(key)
            except Exception as error:
                is_retried = isinstance(error, errors.KubernetesError)
                self._count_reconcile(
                    ReconcileOutcome.RETRIED if is_retried else ReconcileOutcome.FAILED, began
                )
                raise
            self._count_reconcile(ReconcileOutcome.OK, began)
            return requeue_after

        return measured

    def _count_reconcile(self, outcome: ReconcileOutcome, began: float) -> None:
        self._reconcile_seconds.labels(outcome.value).observe(self._monotonic() - began)

    def count_request(self, verb: str, resource: str, code: str) -> None:
        """A request to the API server has ended."""
        self._api_requests.labels(verb, resource, code).inc()

    def count_poll(self, outcome: PollOutcome) -> None:
        """A trainer was asked for its progress."""
        self._polls.labels(outcome.value).inc()

    def mark_event(self, key: Key) -> None:
        """Something has happened to a job."""
        self._delays.mark_event(key, now=self._monotonic())

    def mark_look(self, key: Key) -> None:
        """A reconcile begins, which looks at the job."""
        self._delays.mark_look(key)

    def mark_status_written(self, key: Key) -> None:
        """The reconcile has written the status."""
        seconds = self._delays.mark_written(key, now=self._monotonic())
        if seconds is not None:
            self._event_to_status_seconds.observe(seconds)

    def mark_status_same(self, key: Key) -> None:
        """The reconcile need not write the status."""
        self._delays.mark_same(key)


def _num_jobs(cache: Cache, phase: Phase) -> float:
    return sum((found or Phase.PENDING) == phase for found in cache.job_phases())


def _num_objects(cache: Cache, name: str) -> float:
    return sum(cache.num_objects(kind) for kind in set(_CACHED) if kind.name == name)
