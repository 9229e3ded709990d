"""An Event about a job, as an object. It has no owner: the API server deletes it after an hour. Pure."""

from datetime import datetime

from grpo_api.contract.labels import OPERATOR, short_hash
from grpo_api.v1alpha1.job import API_VERSION, KIND
from grpo_operator.children.names import Names
from grpo_operator.cluster.kinds import EVENTS, KubeObject
from grpo_operator.observe.observed import JobView
from grpo_operator.plan.draft import EventDraft

_LONGEST_MESSAGE = 1024


def event_of(job: JobView, event: EventDraft, *, now: datetime) -> KubeObject:
    """The Event as `kubectl describe grpojob` shows it: core/v1, of which kubectl prints times and source."""
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
