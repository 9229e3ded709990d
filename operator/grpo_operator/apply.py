"""Carries out a plan. The cache learns the outcome of every write at once."""

import asyncio
import logging
import secrets
from collections.abc import Iterable, Sequence

from grpo_api.v1alpha1.job import API_VERSION, KIND
from grpo_api.v1alpha1.status import GRPOJobStatus
from grpo_operator import errors
from grpo_operator.cache import Cache, owner_uid
from grpo_operator.children.run import Child
from grpo_operator.children.shared import TOKEN_FILES
from grpo_operator.client import Client
from grpo_operator.kinds import JOBS, PODS, SECRETS, Manifest
from grpo_operator.observed import JobView, Trouble
from grpo_operator.plan.draft import Deletion
from grpo_operator.refusals import explain_refusal, name_taken

log = logging.getLogger(__name__)

_TOKEN_BYTES = 32
_WRITES_IN_FLIGHT = 16


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
    not tried. Raises other KubernetesErrors once all tries have ended.
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
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return next((outcome for outcome in outcomes if isinstance(outcome, Trouble)), None)


async def _make(client: Client, cache: Cache, job: JobView, child: Child) -> Trouble | None:
    label = f"{child.kind.name} {child.name}"
    try:
        made = await _write(client, job, child)
    except errors.AlreadyExists:
        return await _adopt(client, cache, job, child)
    except (errors.Forbidden, errors.Invalid) as error:
        log.warning("%s/%s: %s: %s", job.namespace, job.name, label, error)
        return explain_refusal(error, kind=child.kind.name, name=child.name)
    log.info("%s/%s: made %s", job.namespace, job.name, label)
    if child.kind != SECRETS:
        cache.put(child.kind, made)
    return None


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
