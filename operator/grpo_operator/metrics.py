"""The operator's own metrics for Prometheus, at `/metrics` beside `/healthz`. To add a metric, yield one
more."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from grpo_api.v1alpha1.status import Phase
from grpo_operator.observe.cache import Cache
from grpo_operator.work_queue import WorkQueue


class OperatorMetrics(Collector):
    """The jobs that this process knows, and those that wait for a worker."""

    def __init__(self, cache: Cache, queue: WorkQueue) -> None:
        self._cache = cache
        self._queue = queue

    def registry(self) -> CollectorRegistry:
        """A registry with these metrics alone."""
        registry = CollectorRegistry()
        registry.register(self)
        return registry

    def collect(self) -> Iterator[Metric]:
        """Each metric with its value now."""
        jobs = GaugeMetricFamily("grpo_operator_jobs", "GRPOJobs by phase.", labels=["phase"])
        found = Counter(phase or Phase.PENDING.value for phase in self._cache.job_phases())
        for phase in Phase:
            jobs.add_metric([phase.value], found[phase.value])
        yield jobs
        yield GaugeMetricFamily(
            "grpo_operator_queued_jobs",
            "GRPOJobs that wait for a worker of the operator.",
            value=self._queue.num_waiting,
        )
