"""Reads the objects of no namespace that a plan of a job in a queue needs: the flavors of its quota and its
priority class. The cache keeps them until the next resync, for all jobs."""

from grpo_operator.cluster import errors
from grpo_operator.cluster.client import Client
from grpo_operator.cluster.kinds import Kind, KubeObject
from grpo_operator.observe.cache import Cache
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.queue import objects_needed


async def read_queue(client: Client, cache: Cache, observed: Observed) -> bool:
    """Read what the cache lacks. Returns whether that was anything: the job must be observed again."""
    missing = objects_needed(observed) - cache.cluster_objects.keys() if not observed.queue_problem else set()
    for kind, name in sorted(missing, key=lambda each: (each[0].plural, each[1])):
        cache.cluster_objects[kind, name] = await _read(client, kind, name)
    return bool(missing)


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
