"""What the operator tells Prometheus of itself."""

from datetime import UTC, datetime
from pathlib import Path

from aiohttp import ClientSession

from grpo_operator.cluster.kinds import JOBS
from grpo_operator.health import METRICS_PATH, Health, serve
from grpo_operator.metrics import OperatorMetrics
from grpo_operator.observe.cache import Cache, Key
from grpo_operator.work_queue import WorkQueue


def job(name: str, phase: str | None) -> dict[str, object]:
    now = datetime.now(UTC).isoformat()
    metadata = {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"}
    found: dict[str, object] = {"metadata": metadata | {"creationTimestamp": now}, "spec": {}}
    return found | ({"status": {"phase": phase}} if phase else {})


async def never(key: Key) -> float | None:
    raise AssertionError("no worker runs")


async def test_jobs_are_counted_by_phase_and_those_that_wait_for_a_worker():
    cache, queue = Cache(), WorkQueue(never, on_error=lambda *_: None)
    for name, phase in (("a", "Running"), ("b", "Running"), ("c", "Failed"), ("d", None)):
        cache.put(JOBS, job(name, phase))
    queue.add(("default", "a"))
    queue.add(("default", "a"))
    runner = await serve(Health(limit_seconds=60), OperatorMetrics(cache, queue).registry(), port=0)
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
    documented = (Path(__file__).parents[2] / "docs/reference.md").read_text()
    assert all(f"`{line.split()[2]}`" in documented for line in text.splitlines() if "# TYPE" in line)
    for line in (
        'grpo_operator_jobs{phase="Running"} 2.0',
        'grpo_operator_jobs{phase="Failed"} 1.0',
        'grpo_operator_jobs{phase="Pending"} 1.0',
        'grpo_operator_jobs{phase="Succeeded"} 0.0',
        "grpo_operator_queued_jobs 1.0",
    ):
        assert line in text.splitlines()
