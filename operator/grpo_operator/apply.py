"""Carries out a plan. The cache learns the outcome of every write at once."""

import asyncio
import logging
import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime

from grpo_api.v1alpha1.job import API_VERSION, KIND
from grpo_api.v1alpha1.status import ConditionStatus, ConditionType, GRPOJobStatus
from grpo_operator import errors
from grpo_operator.cache import Cache, owner_uid
from grpo_operator.children.run import Child
from grpo_operator.children.shared import TOKEN_FILES
from grpo_operator.client import FIELD_MANAGER, Client
from grpo_operator.event import event_of
from grpo_operator.kinds import EVENTS, JOBS, PODS, SECRETS, Manifest
from grpo_operator.observed import JobView, Trouble
from grpo_operator.plan.draft import Announcement, Deletion
from grpo_operator.plan.validate import SCHEMA_SKEW
from grpo_operator.refusals import explain_refusal, name_taken, tokens_lost

log = logging.getLogger(__name__)

_TOKEN_BYTES = 32
_WRITES_IN_FLIGHT = 16
_READY = ConditionType.READY.value


async def write_status(client: Client, cache: Cache, job: JobView, status: GRPOJobStatus) -> None:
    """Server-side apply of the status, on the very object and state it was planned from.

    Raises Conflict when the job has changed since, NotFound when it is gone.
    """
    body = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": job.name,
            "namespace": job.namespace,
            "uid": job.uid,
            "resourceVersion": job.resource_version,
        },
        "status": status.to_object(),
    }
    cache.put(JOBS, await client.apply(JOBS, job.namespace, body, subresource="status"))
    if (status.phase, status.attempt) != (job.status.phase, job.status.attempt):
        log.info("%s/%s is %s, attempt %d", job.namespace, job.name, status.phase.value, status.attempt)


async def write_skew(client: Client, cache: Cache, job: Manifest, sentence: str, *, now: datetime) -> None:
    """Say on a job whose status we cannot read why nothing happens: its condition Ready, and nothing else of
    what the other release wrote, by applying it under a name of its own."""
    meta, status = job["metadata"], job.get("status", {})
    said = [
        (each.get("type"), each.get("reason"), each.get("message")) for each in status.get("conditions", ())
    ]
    if (_READY, SCHEMA_SKEW, sentence) in said:
        return
    log.error("%s", sentence)
    ready = {
        "type": _READY,
        "status": ConditionStatus.FALSE.value,
        "reason": SCHEMA_SKEW,
        "message": sentence,
        "lastTransitionTime": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "observedGeneration": meta["generation"],
    }
    body = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {key: meta[key] for key in ("name", "namespace", "uid")},
        "status": {"conditions": [ready]},
    }
    applied = await client.apply(
        JOBS, meta["namespace"], body, subresource="status", manager=f"{FIELD_MANAGER}-skew"
    )
    cache.put(JOBS, applied)


async def announce(
    client: Client, job: JobView, announcements: Iterable[Announcement], *, now: datetime
) -> None:
    """Write Events. Each has a name of its own, so that neither a retry nor another operator doubles it; one
    that cannot be written is logged, because what it tells of has happened all the same."""
    for said in announcements:
        try:
            await client.create(EVENTS, job.namespace, event_of(job, said, now=now))
        except errors.AlreadyExists:
            log.debug("%s/%s: %s has been announced before", job.namespace, job.name, said.reason)
        except errors.KubernetesError as error:
            log.warning(
                "%s/%s: the Event %s was not written: %s", job.namespace, job.name, said.reason, error
            )


async def delete_objects(client: Client, cache: Cache, job: JobView, deletions: Iterable[Deletion]) -> None:
    """Delete exactly these objects."""
    for deletion in deletions:
        log.info("%s/%s: deleting %s %s", job.namespace, job.name, deletion.kind.name, deletion.name)
        left = await client.delete(deletion.kind, job.namespace, deletion.name, uid=deletion.uid)
        if left is not None:
            cache.put(deletion.kind, left)


async def apply_children(
    client: Client, cache: Cache, job: JobView, children: Sequence[Child]
) -> Trouble | None:
    """Create or apply in order: what is shared first, then the pods together.

    Returns why a child was refused, if one was; the pods of a job whose shared children are refused are
    not tried. Raises other KubernetesErrors once all tries have ended, unless there is a refusal to tell:
    whoever hears of it tries again.
    """
    for child in (child for child in children if child.kind != PODS):
        refusal = await _make(client, cache, job, child)
        if refusal:
            return refusal
    limit = asyncio.Semaphore(_WRITES_IN_FLIGHT)

    async def make_pod(child: Child) -> Trouble | None:
        async with limit:
            return await _make(client, cache, job, child)

    pods = [child for child in children if child.kind == PODS]
    outcomes = await asyncio.gather(*(make_pod(child) for child in pods), return_exceptions=True)
    refusals = [outcome for outcome in outcomes if isinstance(outcome, Trouble)]
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not (refusals and isinstance(outcome, errors.Transient)):
            raise outcome
    return next(iter(refusals), None)


async def _make(client: Client, cache: Cache, job: JobView, child: Child) -> Trouble | None:
    label = f"{child.kind.name} {child.name}"
    if child.is_expected:
        return await _expect(client, job, child)
    try:
        made = await _write(client, job, child)
    except errors.AlreadyExists:
        return await _adopt(client, cache, job, child)
    except (errors.Forbidden, errors.Invalid, errors.ServerFailed) as error:
        log.warning("%s/%s: %s: %s", job.namespace, job.name, label, error)
        return explain_refusal(error, kind=child.kind.name, name=child.name)
    log.info("%s/%s: made %s", job.namespace, job.name, label)
    if child.kind != SECRETS:
        cache.put(child.kind, made)
    return None


async def _expect(client: Client, job: JobView, child: Child) -> Trouble | None:
    """Whether a child that cannot be read is there, from what the API server would say to its creation. A
    refusal for another reason, such as a full quota or a webhook that is down, leaves it open, and it is
    taken to be there."""
    try:
        await client.create(child.kind, job.namespace, child.manifest, is_dry_run=True)
    except (errors.AlreadyExists, errors.Forbidden, errors.Invalid, errors.ServerFailed):
        return None
    return tokens_lost(child.name, job_uid=job.uid)


async def _write(client: Client, job: JobView, child: Child) -> Manifest:
    if child.is_correction:
        return await client.apply(child.kind, job.namespace, child.manifest)
    manifest = child.manifest
    if child.kind == SECRETS:
        drawn = {name: secrets.token_urlsafe(_TOKEN_BYTES) for name in TOKEN_FILES}
        manifest = {**manifest, "stringData": drawn}
    return await client.create(child.kind, job.namespace, manifest)


async def _adopt(client: Client, cache: Cache, job: JobView, child: Child) -> Trouble | None:
    """The name is taken: fine when it is ours, made by an earlier try or by another operator.

    The Secret cannot be read and is trusted by its name, which carries a hash of the job's uid.
    """
    if child.kind == SECRETS:
        return None
    found = await client.get(child.kind, job.namespace, child.name)
    if owner_uid(found) != job.uid:
        return name_taken(child.kind.name, child.name)
    cache.put(child.kind, found)
    return None
