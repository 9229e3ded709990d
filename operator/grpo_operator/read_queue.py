"""Reads what a plan of a job in a queue needs and no watch shows: the flavors of its quota and its priority
class, which are of no namespace, and its position in the queue. The cache keeps it for all jobs."""

import logging
from collections.abc import Mapping
from datetime import datetime

from grpo_operator.cluster import errors
from grpo_operator.cluster.client import Client
from grpo_operator.cluster.kinds import Kind, KubeObject, pending_workloads
from grpo_operator.observe.cache import Cache
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.queue import is_pending, job_workload_of, objects_needed

log = logging.getLogger(__name__)

POSITIONS_SECONDS = 15.0
"""How long the positions in a queue are taken to be those that were read."""


async def read_queue(client: Client, cache: Cache, observed: Observed, *, now: datetime) -> bool:
    """Read what the cache lacks. Returns whether that was anything: the job must be observed again."""
    if observed.queue_problem:
        return False
    missing = objects_needed(observed) - cache.cluster_objects.keys()
    for kind, name in sorted(missing, key=lambda each: (each[0].plural, each[1])):
        cache.cluster_objects[kind, name] = await _read(client, kind, name)
    namespace, queue = observed.job.namespace, _waits_in(observed)
    known = cache.queue_positions.get((namespace, queue))
    is_old = known is None or abs((now - known[0]).total_seconds()) > POSITIONS_SECONDS
    if queue and is_old:
        cache.queue_positions[namespace, queue] = now, await _positions(client, namespace, queue)
    return bool(missing) or bool(queue and is_old)


async def _read(client: Client, kind: Kind, name: str) -> KubeObject | str:
    """The object, or why there is none for us."""
    try:
        return await client.get(kind, None, name)
    except errors.NotFound:
        return f"there is no {kind.name} {name}: create it, or create the job anew with another"
    except errors.Forbidden as error:
        return (
            f"the operator may not read {kind.name} {name}: its administrator gives it the right with "
            f"`kueue.enabled` of the chart: {error}"
        )


def _waits_in(observed: Observed) -> str:
    """The queue in which the job waits; empty where it does not."""
    queue, workload = observed.job.status.queue, job_workload_of(observed)
    return queue.name if queue is not None and workload is not None and is_pending(workload) else ""


async def _positions(client: Client, namespace: str, queue: str) -> Mapping[str, int]:
    """How many Workloads are before each of those that wait in a queue. Kueue need not serve this, and a job
    waits as well without it: none are known then."""
    try:
        found = await client.get(pending_workloads(queue), namespace, "")
    except errors.KubernetesError as error:
        log.debug("the positions in queue %s/%s are not known: %s", namespace, queue, error)
        return {}
    return {item["metadata"]["name"]: item["positionInLocalQueue"] for item in found.get("items", ())}
