"""What the operator tells Prometheus of itself."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import ClientSession
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from grpo_operator.cluster import errors
from grpo_operator.cluster.kinds import CONFIG_MAPS, JOBS, PODS, pending_workloads
from grpo_operator.health import METRICS_PATH, Health, serve
from grpo_operator.metrics import OperatorMetrics
from grpo_operator.observe.cache import Cache, Key
from grpo_operator.observe.process_state import ProcessState
from grpo_operator.observe.progress_poller import PollOutcome
from grpo_operator.work_queue import WorkQueue

from .controlled_job import KEY, a_job, controller_of
from .fake_api_server import FakeApiServer

MOST_SERIES = 150
"""Of an operator that has made no request yet."""
LABELS = {"phase", "outcome", "verb", "resource", "code", "kind", "version", "le"}


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def job(name: str, phase: str | None, *, namespace: str = "default") -> dict[str, Any]:
    now = datetime.now(UTC).isoformat()
    metadata = {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1"}
    found = {"kind": "GRPOJob", "metadata": metadata | {"creationTimestamp": now}, "spec": {}}
    return found | ({"status": {"phase": phase}} if phase else {})


def pod(name: str, *, namespace: str = "default") -> dict[str, Any]:
    return {"kind": "Pod", "metadata": job(f"{name}-trainer-a1-0", None, namespace=namespace)["metadata"]}


async def never(key: Key) -> float | None:
    raise AssertionError("no worker runs")


def queue_of(clock: Clock) -> WorkQueue:
    return WorkQueue(never, on_error=lambda *_: None, monotonic=clock)


def series(metrics: OperatorMetrics) -> dict[str, float]:
    """Each series by its name with its labels, as Prometheus reads them."""
    text = generate_latest(metrics.registry).decode()
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


async def test_jobs_objects_and_the_queue_are_as_they_are_at_the_scrape() -> None:
    clock, cache, metrics = Clock(), Cache(), OperatorMetrics()
    queue = queue_of(clock)
    for name, phase in (("a", "Running"), ("b", "Running"), ("c", "Failed"), ("d", None)):
        cache.put(JOBS, job(name, phase))
    cache.put(PODS, pod("a"))
    before = series(metrics)
    assert before["grpo_operator_is_leader"] == 0
    metrics.mark_leader(cache, queue)
    queue.add(("default", "a"))
    clock.seconds += 5
    queue.add(("default", "a"))
    queue.add(("default", "b"))
    runner = await serve(Health(limit_seconds=60), metrics.registry, port=0)
    try:
        [(_, port, *_)] = runner.addresses
        async with (
            ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}{METRICS_PATH}") as answer,
        ):
            text, content_type = await answer.text(), answer.content_type
    finally:
        await runner.cleanup()
    assert content_type == "text/plain"
    for line in (
        'grpo_operator_jobs{phase="Running"} 2.0',
        'grpo_operator_jobs{phase="Failed"} 1.0',
        'grpo_operator_jobs{phase="Pending"} 1.0',
        'grpo_operator_jobs{phase="Succeeded"} 0.0',
        'grpo_operator_cache_objects{kind="GRPOJob"} 4.0',
        'grpo_operator_cache_objects{kind="Pod"} 1.0',
        'grpo_operator_cache_objects{kind="PodGroup"} 0.0',
        "grpo_operator_queue_depth 2.0",
        "grpo_operator_queue_oldest_seconds 5.0",
        "grpo_operator_is_leader 1.0",
    ):
        assert line in text.splitlines()
    assert (
        before.keys() == series(metrics).keys()
    )  # a series that is there from the start can be seen to rise


async def test_a_reconcile_has_its_time_and_how_it_ended() -> None:
    clock = Clock()
    metrics = OperatorMetrics(monotonic=clock)
    outcomes: list[Exception | None] = [
        None,
        errors.Transient("busy"),
        errors.Conflict("changed"),
        KeyError("x"),
    ]

    async def reconcile(key: Key) -> float | None:
        clock.seconds += 0.2
        if error := outcomes.pop(0):
            raise error
        return 7.0

    timed = metrics.timed(reconcile)
    assert await timed(KEY) == 7.0
    while outcomes:
        with pytest.raises((errors.KubernetesError, KeyError)):
            await timed(KEY)
    found = series(metrics)
    counts = {
        outcome: found[f'grpo_operator_reconcile_seconds_count{{outcome="{outcome}"}}']
        for outcome in ("ok", "retried", "failed")
    }
    assert counts == {"ok": 1, "retried": 2, "failed": 1}
    assert found['grpo_operator_reconcile_seconds_sum{outcome="retried"}'] == pytest.approx(0.4)
    assert found['grpo_operator_reconcile_seconds_bucket{le="0.1",outcome="ok"}'] == 0
    assert found['grpo_operator_reconcile_seconds_bucket{le="0.25",outcome="ok"}'] == 1


class ChangedMeanwhile(FakeApiServer):
    """Somebody changes the job before its status is written, so many times, in a second each."""

    def __init__(self, clock: Clock, *, times: int) -> None:
        super().__init__()
        self._clock_of_the_test, self._times = clock, times

    async def apply(self, kind: Any, namespace: str, body: Any, **more: Any) -> Any:
        if more.get("subresource") == "status":
            self._clock_of_the_test.seconds += 1
            if self._times:
                self._times -= 1
                (found,) = self.objects(JOBS)
                self.put(JOBS, found | {"metadata": found["metadata"] | {"labels": {"by": str(self._times)}}})
        return await super().apply(kind, namespace, body, **more)


async def test_the_time_from_an_event_to_its_status_has_that_of_every_conflict() -> None:
    clock, cache = Clock(), Cache()
    metrics = OperatorMetrics(monotonic=clock)
    client = ChangedMeanwhile(clock, times=2)
    client.put(JOBS, a_job())
    client.show(cache)
    controller = controller_of(client, cache, ProcessState(), metrics=metrics)
    metrics.mark_event(KEY)
    for _ in range(3):
        await controller.reconcile(KEY)
    found = series(metrics)
    assert found["grpo_operator_event_to_status_seconds_count"] == 1
    assert found["grpo_operator_event_to_status_seconds_sum"] == 3.0


async def test_an_event_that_changes_nothing_and_one_of_a_deleted_job_are_no_delay() -> None:
    clock, cache = Clock(), Cache()
    metrics = OperatorMetrics(monotonic=clock)
    client = FakeApiServer()
    client.put(JOBS, a_job())
    client.show(cache)
    controller = controller_of(client, cache, ProcessState(), metrics=metrics)
    for _ in range(3):
        await controller.reconcile(KEY)
    metrics.mark_event(KEY)
    await controller.reconcile(KEY)
    client.remove(JOBS, "copy")
    client.show(cache)
    metrics.mark_event(KEY)
    await controller.reconcile(KEY)
    assert series(metrics)["grpo_operator_event_to_status_seconds_count"] == 0


def test_no_label_comes_from_an_object_and_500_jobs_have_as_many_series_as_one() -> None:
    def of_jobs(num: int) -> dict[str, float]:
        clock, cache, metrics = Clock(), Cache(), OperatorMetrics()
        queue = queue_of(clock)
        metrics.mark_leader(cache, queue)
        for index in range(num):
            name, namespace = f"own-{index}", f"team-{index % 50}"
            cache.put(JOBS, job(name, "Running", namespace=namespace))
            cache.put(PODS, pod(name, namespace=namespace))
            queue.add((namespace, name))
            metrics.mark_event((namespace, name))
            metrics.mark_look((namespace, name))
            metrics.mark_status_written((namespace, name))
            metrics.count_poll(PollOutcome.OK)
            for kind in (JOBS, PODS, CONFIG_MAPS, pending_workloads(f"own-queue-{index}")):
                metrics.count_request("get", kind.resource, "200")
        return series(metrics)

    many = of_jobs(500)
    assert many.keys() == of_jobs(1).keys()
    assert len(series(OperatorMetrics())) <= MOST_SERIES
    assert [name for name in many if "own" in name or "team" in name] == []
    assert many['grpo_operator_jobs{phase="Running"}'] == 500
    assert (
        'grpo_operator_api_requests_total{code="200",resource="localqueues/pendingworkloads",verb="get"}'
        in many
    )


def test_labels_are_of_few_kinds() -> None:
    metrics = OperatorMetrics()
    metrics.count_request("get", "pods", "200")
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    assert {label for family in families for sample in family.samples for label in sample.labels} == LABELS


def test_promtool_says_nothing_against_the_metrics_of_an_operator(
    check_metrics: Callable[[str], str],
) -> None:
    metrics = OperatorMetrics()
    metrics.mark_leader(Cache(), queue_of(Clock()))
    metrics.count_request("get", "pods", "200")
    assert check_metrics(generate_latest(metrics.registry).decode()) == ""
