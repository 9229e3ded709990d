"""Writes the Events of a plan."""

import logging
from collections.abc import Iterable
from datetime import datetime

from grpo_operator.apply.event_object import event_of
from grpo_operator.cluster import errors
from grpo_operator.cluster.client import Client
from grpo_operator.cluster.kinds import EVENTS
from grpo_operator.observe.observed import JobView
from grpo_operator.plan.draft import EventDraft

log = logging.getLogger(__name__)


async def write_events(client: Client, job: JobView, events: Iterable[EventDraft], *, now: datetime) -> None:
    """Write Events. Each has a name of its own, so that neither a retry nor another operator doubles it. One
    that cannot be written is logged and nothing more: what it is about has happened already."""
    for event in events:
        try:
            await client.create(EVENTS, job.namespace, event_of(job, event, now=now))
        except errors.AlreadyExists:
            log.debug("%s/%s: the Event %s exists already", job.namespace, job.name, event.why.reason)
        except errors.KubernetesError as error:
            log.warning(
                "%s/%s: the Event %s was not written: %s", job.namespace, job.name, event.why.reason, error
            )
