"""What the bench asks of the cluster: GRPOJobs, Jobs of the built-in controller, and pods that change."""

import asyncio
import random
import time
import zlib
from typing import Any

import yaml

from grpo_cluster.settings import REPOSITORY
from grpo_scale.fake_nodes import NAMESPACE
from grpo_scale.observer import JOBS_PATH, PODS_PATH, Observer
from grpo_scale.requests import Object, Requests

PODS_PER_JOB = 3
_BATCH_PATH = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
_CREATED_AT_ONCE = 16
_LIMIT_SECONDS = 900.0
_PAUSE_SECONDS = 0.2


async def create_jobs(requests: Requests, observer: Observer, *, names: list[str]) -> float:
    """Create GRPOJobs at once; returns the seconds from the first request until all have their pods.
    Raises ClusterError when some still have not after a quarter of an hour."""
    example = yaml.safe_load((REPOSITORY / "examples/copy-disaggregated.yaml").read_text())
    bodies = [_unlike_others(example, name) for name in names]
    return await _create(requests, observer, JOBS_PATH, bodies)


async def create_built_in_jobs(requests: Requests, observer: Observer, *, num_jobs: int) -> float:
    """The same with Jobs of the built-in controller."""
    bodies = [_built_in_job(f"builtin-{index}") for index in range(num_jobs)]
    return await _create(requests, observer, _BATCH_PATH, bodies)


async def delete_built_in_jobs(requests: Requests, observer: Observer) -> None:
    """Delete them and wait until their pods are gone."""
    await requests.send("DELETE", f"{_BATCH_PATH}?propagationPolicy=Background")
    await observer.until(
        lambda: not any(observer.num_pods_of.values()),
        what="the pods of the built-in Jobs to be gone",
        timeout_seconds=_LIMIT_SECONDS,
    )


async def _create(requests: Requests, observer: Observer, path: str, bodies: list[Object]) -> float:
    names = [body["metadata"]["name"] for body in bodies]
    limit = asyncio.Semaphore(_CREATED_AT_ONCE)

    async def create(body: Object) -> None:
        async with limit:
            await requests.send("POST", path, body)

    start = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for body in bodies:
            group.create_task(create(body))
    end = await observer.until(
        lambda: all(observer.num_pods_of.get(name, 0) >= PODS_PER_JOB for name in names),
        what=f"the pods of {len(names)} jobs",
        timeout_seconds=_LIMIT_SECONDS,
    )
    return end - start


async def time_events(
    requests: Requests, observer: Observer, *, names: list[str], stop: asyncio.Event
) -> list[float]:
    """Seconds from each change of a rollout pod of a running job until the job's status says so.

    Until `stop` there is a new event every `_PAUSE_SECONDS`, one at a time for a job.
    """
    free = list(names)
    random.shuffle(free)
    taken: list[float] = []

    async def time_one(name: str) -> None:
        taken.append(await _time_event(requests, observer, name))
        free.insert(0, name)

    async with asyncio.TaskGroup() as group:
        while not stop.is_set():
            if free:
                group.create_task(time_one(free.pop()))
            await asyncio.sleep(_PAUSE_SECONDS)
    return taken


async def _time_event(requests: Requests, observer: Observer, name: str) -> float:
    seen = observer.jobs[name]
    becomes_ready = seen.num_engines_ready < len(seen.engines)
    expected = len(seen.engines) if becomes_ready else len(seen.engines) - 1
    ready = {"type": "Ready", "status": "True" if becomes_ready else "False"}
    start = time.monotonic()
    await requests.send(
        "PATCH",
        f"{PODS_PATH}/{min(seen.engines)}/status",
        {"status": {"conditions": [ready]}},
        content_type="application/strategic-merge-patch+json",
    )
    end = await observer.until(
        lambda: seen.num_engines_ready == expected,
        what=f"the status of {name} to show {expected} ready engines",
        timeout_seconds=_LIMIT_SECONDS,
    )
    return end - start


def _unlike_others(example: Object, name: str) -> Object:
    """The example with a spec that no other job has: nothing that is kept for equal specs may help."""
    algorithm = example["spec"]["algorithm"] | {"seed": zlib.crc32(name.encode()) % 2**31}
    return example | {"metadata": {"name": name}, "spec": example["spec"] | {"algorithm": algorithm}}


def _built_in_job(name: str) -> dict[str, Any]:
    container = {"name": "main", "image": "example.test/any:1", "resources": {"requests": {"cpu": "200m"}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "parallelism": PODS_PER_JOB,
            "completions": PODS_PER_JOB,
            "template": {"spec": {"containers": [container], "restartPolicy": "Never"}},
        },
    }
