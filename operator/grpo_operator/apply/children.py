"""Makes and deletes the children of a job. The cache takes in what the API server answers."""

import asyncio
import logging
import secrets
from collections.abc import Iterable, Sequence

from grpo_operator.apply.refusals import (
    being_deleted,
    config_changed,
    explain_refusal,
    name_taken,
    not_restricted,
    tokens_lost,
)
from grpo_operator.children.child import Child
from grpo_operator.children.config import TOKEN_FILES, content_digest
from grpo_operator.children.pod import STOPPED_SECONDS
from grpo_operator.children.restricted import problems_of_pod
from grpo_operator.cluster import errors
from grpo_operator.cluster.client import Client
from grpo_operator.cluster.kinds import CONFIG_MAPS, PODS, SECRETS, WORKLOADS, KubeObject
from grpo_operator.observe.cache import Cache, owner_uid
from grpo_operator.observe.observed import JobView, Refusal
from grpo_operator.plan.draft import Deletion, Stop

log = logging.getLogger(__name__)

_TOKEN_BYTES = 32
_WRITES_IN_FLIGHT = 16


async def delete_objects(client: Client, cache: Cache, job: JobView, deletions: Iterable[Deletion]) -> bool:
    """Delete exactly these objects. Returns whether one of them is gone already: a watch that begins later
    does not show that. Raises Conflict when one is no longer in the state in which it is to be deleted."""
    is_one_gone = False
    for deletion in deletions:
        log.info("%s/%s: deleting %s %s", job.namespace, job.name, deletion.kind.name, deletion.name)
        left = await client.delete(
            deletion.kind,
            job.namespace,
            deletion.name,
            uid=deletion.uid,
            resource_version=deletion.resource_version,
            grace_seconds=deletion.grace_seconds,
        )
        if left is not None:
            cache.put(deletion.kind, left)
        else:
            cache.mark_gone(deletion.kind, (job.namespace, deletion.name), uid=deletion.uid)
            is_one_gone = True
    return is_one_gone


async def stop_pods(client: Client, cache: Cache, job: JobView, stops: Iterable[Stop]) -> None:
    """Have their nodes end exactly these pods, which stay with their logs. One that may not be changed is
    deleted, because it must not keep its hardware."""
    for stop in stops:
        log.info("%s/%s: stopping Pod %s", job.namespace, job.name, stop.name)
        body = {
            "apiVersion": PODS.api_version,
            "kind": PODS.name,
            "metadata": {"name": stop.name, "uid": stop.uid},
            "spec": {"activeDeadlineSeconds": STOPPED_SECONDS},
        }
        try:
            cache.put(PODS, await client.apply(PODS, job.namespace, body))
        except (errors.NotFound, errors.Conflict):
            log.debug("%s/%s: Pod %s is gone", job.namespace, job.name, stop.name)
        except (errors.Forbidden, errors.Invalid) as error:
            log.warning(
                "%s/%s: Pod %s cannot be stopped and is deleted with its log: %s",
                *(job.namespace, job.name, stop.name, error),
            )
            await delete_objects(client, cache, job, [Deletion(PODS, stop.name, stop.uid)])


async def apply_children(
    client: Client, cache: Cache, job: JobView, children: Sequence[Child]
) -> Refusal | None:
    """Create or apply in order: what is shared first, then one pod, then the others together, and what asks
    Kueue for more at the end.

    Returns why a child was refused, if one was; nothing after it is tried, because what refuses one pod, such
    as a full quota, mostly refuses the others too. Raises any other KubernetesError once all tries have
    ended. A Transient error beside a refusal is not raised, because a job with a refusal is tried again soon
    anyway.
    """
    pods = [child for child in children if child.kind == PODS]
    asked = [child for child in children if child.kind == WORKLOADS]
    for child in (*(child for child in children if child.kind not in (PODS, WORKLOADS)), *pods[:1]):
        refusal = await _make(client, cache, job, child)
        if refusal:
            return refusal
    limit = asyncio.Semaphore(_WRITES_IN_FLIGHT)

    async def make_pod(child: Child) -> Refusal | None:
        async with limit:
            return await _make(client, cache, job, child)

    outcomes = await asyncio.gather(*(make_pod(child) for child in pods[1:]), return_exceptions=True)
    refusals = [outcome for outcome in outcomes if isinstance(outcome, Refusal)]
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not (refusals and isinstance(outcome, errors.Transient)):
            raise outcome
    for child in asked if not refusals else ():
        refusal = await _make(client, cache, job, child)
        if refusal:
            return refusal
    return next(iter(refusals), None)


async def _make(client: Client, cache: Cache, job: JobView, child: Child) -> Refusal | None:
    label = f"{child.kind.name} {child.name}"
    if child.is_expected:
        return await _require(client, job, child)
    if child.kind == PODS and (problems := problems_of_pod(child.body, allowed=child.allowed)):
        return not_restricted(child.name, problems)
    try:
        made = await _write(client, job, child)
    except errors.AlreadyExists:
        return await _adopt(client, cache, job, child)
    except (errors.Forbidden, errors.Invalid, errors.ServerFailed, errors.NotFound) as error:
        if isinstance(error, errors.NotFound) and not child.kind.comes_with:
            raise
        log.debug("%s/%s: %s: %s", job.namespace, job.name, label, error)
        return explain_refusal(error, kind=child.kind, name=child.name)
    log.info("%s/%s: made %s", job.namespace, job.name, label)
    if child.kind != SECRETS:
        cache.put(child.kind, made)
    return None


async def _require(client: Client, job: JobView, child: Child) -> Refusal | None:
    """Check that a Secret exists, which the operator may not read: a dry run of its creation says so.

    Where the dry run is refused for another reason, such as a full quota or a webhook that is down, the
    Secret is taken to exist.
    """
    try:
        await client.create(child.kind, job.namespace, child.body, is_dry_run=True)
    except (errors.AlreadyExists, errors.Forbidden, errors.Invalid, errors.ServerFailed):
        return None
    return tokens_lost(child.name, job_uid=job.uid)


async def _write(client: Client, job: JobView, child: Child) -> KubeObject:
    if child.is_correction:
        return await client.apply(child.kind, job.namespace, child.body)
    body = child.body
    if child.kind == SECRETS:
        tokens = {name: secrets.token_urlsafe(_TOKEN_BYTES) for name in TOKEN_FILES}
        body = {**body, "stringData": tokens}
    return await client.create(child.kind, job.namespace, body)


async def _adopt(client: Client, cache: Cache, job: JobView, child: Child) -> Refusal | None:
    """The name is taken, which is fine when the object is ours: an earlier try or another operator made it.

    The Secret cannot be read and is trusted by its name, which carries a hash of the job's uid.
    """
    if child.kind == SECRETS:
        return None
    found = await client.get(child.kind, job.namespace, child.name)
    if owner_uid(found) != job.uid:
        return name_taken(child.kind.name, child.name)
    cache.put(child.kind, found)
    if child.kind != CONFIG_MAPS:
        return None
    if "deletionTimestamp" in found["metadata"]:
        return being_deleted(child.kind.name, child.name, found["metadata"].get("finalizers", ()))
    return None if content_digest(found) == content_digest(child.body) else config_changed(child.name)
