"""Asks the API server by name for children that the cache does not show, before they count as gone.

A cache may lag behind, and a child whose label was taken away is in no list and no watch of ours, which looks
like a deletion. A new attempt, a second pod in a slot or a lost revision must not follow from either.
"""

import asyncio
from collections.abc import Iterator
from datetime import datetime

from grpo_api.contract.reasons import Reason
from grpo_api.v1alpha1.status import ConditionType
from grpo_operator.children.names import Names
from grpo_operator.cluster import errors
from grpo_operator.cluster.client import Client
from grpo_operator.cluster.kinds import CONFIG_MAPS, PODS, WORKLOADS
from grpo_operator.observe.cache import Cache, ChildName, Key, owner_uid
from grpo_operator.observe.engine_pods import missing_members
from grpo_operator.observe.observed import JobView, Observed
from grpo_operator.observe.process_state import ProcessState
from grpo_operator.plan.conditions import condition, is_true
from grpo_operator.plan.facts import has_all_trainers


async def find_missing(
    client: Client, cache: Cache, state: ProcessState, *, key: Key, observed: Observed, now: datetime
) -> bool:
    """Look for children that this process has seen, or that the status speaks of, and that the cache lacks.

    True if one was found: the cache has it now, and the job must be observed again. What is not there is
    remembered, and asked for once; but a job that says RevisionLost waits for somebody to restore its
    ConfigMap, perhaps without labels, and has it asked for again from time to time.
    """
    unknown = state.missing_children(
        key,
        shown=cache.child_names(observed.job.identity),
        expected=frozenset(_expected(observed)),
        awaited=frozenset(_awaited(observed.job)),
        now=now,
    )
    # where Workloads cannot be listed, they cannot be asked for either
    missing = [child for child in unknown if not (child[0] == WORKLOADS and observed.queue_problem)]
    found = await asyncio.gather(
        *(_find(client, cache, state, observed.job, child, now=now) for child in missing)
    )
    return any(found)


def _awaited(job: JobView) -> Iterator[ChildName]:
    """Children that a person has been asked to restore."""
    ready = condition(job.status, ConditionType.READY)
    if ready is not None and ready.reason == Reason.REVISION_LOST:
        yield CONFIG_MAPS, Names.of(job=job.name, uid=job.uid).config(job.status.revision)


def _expected(observed: Observed) -> Iterator[ChildName]:
    """Children that existed according to the status, and the other pods of an engine of which one is there:
    an operator that has just started has seen nothing itself."""
    job, status = observed.job, observed.job.status
    if status.attempt == 0 or is_true(status, ConditionType.FINISHED):
        return
    names = Names.of(job=job.name, uid=job.uid)
    yield CONFIG_MAPS, names.config(status.revision)
    if status.queue is not None:
        yield WORKLOADS, names.workload
    spec = observed.stored_spec or job.spec
    if spec is None:
        return
    num_nodes = spec.rollout.nodes_per_replica if spec.rollout else 1
    for engine in observed.rollouts:
        for name in missing_members(engine, names, num_nodes=num_nodes):
            yield PODS, name
    # While an attempt is yet to begin, no process of the one before may be alive. That of a suspended job
    # ends.
    is_there = has_all_trainers(status) or status.is_suspended
    attempt = status.attempt if is_there else status.attempt - 1
    for index in range(spec.trainer.num_nodes if attempt else 0):
        yield PODS, names.trainer(attempt=attempt, index=index)


async def _find(
    client: Client, cache: Cache, state: ProcessState, job: JobView, child: ChildName, *, now: datetime
) -> bool:
    """Whether the job has this child, and the cache shows it now. Its watch event may come before the
    answer."""
    kind, name = child
    try:
        found = await client.get(kind, job.namespace, name)
    except errors.NotFound:
        state.mark_gone((job.namespace, job.name), child, now=now)
        return False
    if owner_uid(found) != job.uid:
        state.mark_gone((job.namespace, job.name), child, now=now)
        return False
    cache.put(kind, found)
    return child in cache.child_names(job.identity)
