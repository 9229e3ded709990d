"""Writes the status of a job's Workloads. The cache takes in what the API server answers."""

import logging
from collections.abc import Iterable

from grpo_operator.cluster import errors
from grpo_operator.cluster.client import Client
from grpo_operator.cluster.kinds import WORKLOADS
from grpo_operator.observe.cache import Cache
from grpo_operator.observe.observed import JobView
from grpo_operator.plan.draft import WorkloadPatch

log = logging.getLogger(__name__)


async def patch_workloads(
    client: Client, cache: Cache, job: JobView, patches: Iterable[WorkloadPatch]
) -> bool:
    """Change exactly these states of Workloads. Returns whether one was another by then: Kueue writes them
    too, and what to write is decided anew from the newer state, which the cache then has."""
    has_changed = False
    for patch in patches:
        body = {
            "metadata": {"resourceVersion": patch.resource_version},
            "status": {"conditions": list(patch.conditions), **patch.other},
        }
        try:
            cache.put(WORKLOADS, await client.merge_status(WORKLOADS, job.namespace, patch.name, body))
        except errors.Conflict:
            has_changed = True
            cache.put(WORKLOADS, await client.get(WORKLOADS, job.namespace, patch.name))
        except errors.NotFound:
            log.debug("%s/%s: Workload %s is gone", job.namespace, job.name, patch.name)
    return has_changed
