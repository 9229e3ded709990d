"""Writes the Events of a plan. Each has a name of its own, so that neither a retry nor another operator
doubles it."""

import logging
from collections.abc import Iterable
from datetime import datetime

from grpo_api.contract.labels import OPERATOR, short_hash
from grpo_api.v1alpha1.job import API_VERSION, KIND
from grpo_operator.children.names import Names
from grpo_operator.cluster import errors
from grpo_operator.cluster.client import Client
from grpo_operator.cluster.kinds import EVENTS, KubeObject
from grpo_operator.observe.observed import JobView
from grpo_operator.plan.draft import EventDraft

log = logging.getLogger(__name__)

_LONGEST_MESSAGE = 1024


async def write_events(client: Client, job: JobView, events: Iterable[EventDraft], *, now: datetime) -> None:
    """Write Events. One that cannot be written is logged and nothing more: what it is about has happened
    already."""
    for event in events:
        try:
            await client.create(EVENTS, job.namespace, event_of(job, event, now=now))
        except errors.AlreadyExists:
            log.debug("%s/%s: the Event %s exists already", job.namespace, job.name, event.why.reason)
        except errors.KubernetesError as error:
            log.warning(
                "%s/%s: the Event %s was not written: %s", job.namespace, job.name, event.why.reason, error
            )


def event_of(job: JobView, event: EventDraft, *, now: datetime) -> KubeObject:
    """The Event as `kubectl describe grpojob` shows it: core/v1, of which kubectl prints times and source. It
    has no owner: the API server deletes it after an hour."""
    names = Names.of(job=job.name, uid=job.uid)
    at = f"{now:%Y-%m-%dT%H:%M:%SZ}"
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.name,
        "metadata": {
            "name": f"{names.base}.{short_hash('/'.join(event.identity), 16)}",
            "namespace": job.namespace,
        },
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": job.namespace,
            "name": job.name,
            "uid": job.uid,
        },
        "type": "Warning" if event.is_warning else "Normal",
        "reason": event.why.reason,
        "message": event.why.message[:_LONGEST_MESSAGE],
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
        "source": {"component": OPERATOR},
        "reportingComponent": OPERATOR,
    }
