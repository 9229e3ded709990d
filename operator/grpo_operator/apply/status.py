"""Writes the status of a job. The cache takes in what the API server answers."""

import logging
from datetime import datetime

from grpo_api.contract.reasons import Reason
from grpo_api.v1alpha1.job import API_VERSION, KIND
from grpo_api.v1alpha1.status import ConditionStatus, ConditionType, GRPOJobStatus
from grpo_operator.cluster.client import FIELD_MANAGER, Client
from grpo_operator.cluster.kinds import JOBS, KubeObject
from grpo_operator.observe.cache import Cache
from grpo_operator.observe.observed import JobView

log = logging.getLogger(__name__)


def stored_status(job: JobView) -> KubeObject:
    """The status as it was read, without what the model adds."""
    return job.status.model_dump(mode="json", by_alias=True, exclude_unset=True)


async def write_status(client: Client, cache: Cache, job: JobView, status: GRPOJobStatus) -> KubeObject:
    """Server-side apply of the status, on the very object and state it was planned from, without what the CRD
    of the cluster lacks. Fields already stored that the schema lacks are kept: to leave them out would
    remove them, because the operators of all releases write under one field manager.

    Returns the job as it is then. Raises Conflict when the job has changed since, NotFound when it is gone.
    """
    schema, shown = cache.served_schema, stored_status(job)
    if schema.is_older_than(shown):
        # an older CRD may have been installed since the job was read: then it is no longer returned
        shown = (await client.get(JOBS, job.namespace, job.name)).get("status", {})
    body = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": job.name,
            "namespace": job.namespace,
            "uid": job.uid,
            "resourceVersion": job.resource_version,
        },
        "status": schema.fit_object(status, shown=shown),
    }
    written = await client.apply(JOBS, job.namespace, body, subresource="status")
    cache.put(JOBS, written)
    if (status.phase, status.attempt) != (job.status.phase, job.status.attempt):
        log.info("%s/%s is %s, attempt %d", job.namespace, job.name, status.phase.value, status.attempt)
    return written


async def write_schema_skew(
    client: Client, cache: Cache, job: KubeObject, message: str, *, now: datetime
) -> None:
    """Write on a job whose status we cannot read why this operator does nothing about it.

    Only the condition Ready is applied, under a field manager of its own, so that the rest of the status
    stays as the other release wrote it. Raises Conflict or NotFound when the job is gone.
    """
    meta, status = job["metadata"], job.get("status", {})
    ready = {
        "type": ConditionType.READY.value,
        "status": ConditionStatus.FALSE.value,
        "reason": Reason.SCHEMA_SKEW.value,
        "message": message,
    }
    if any(ready.items() <= known.items() for known in status.get("conditions", ())):
        return
    log.error("%s", message)
    dated = ready | {
        "lastTransitionTime": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "observedGeneration": meta["generation"],
    }
    body = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {key: meta[key] for key in ("name", "namespace", "uid")},
        "status": {"conditions": [dated]},
    }
    applied = await client.apply(
        JOBS, meta["namespace"], body, subresource="status", manager=f"{FIELD_MANAGER}-skew"
    )
    cache.put(JOBS, applied)
