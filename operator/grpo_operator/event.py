"""An Event about a job. Its owner is nobody: the API server lets it go after an hour."""

from datetime import datetime

from grpo_api.contract.labels import OPERATOR, short_hash
from grpo_api.v1alpha1.job import API_VERSION, KIND
from grpo_operator.kinds import EVENTS, Manifest
from grpo_operator.names import Names
from grpo_operator.observed import JobView
from grpo_operator.plan.draft import Announcement

_LONGEST = 1024


def event_of(job: JobView, said: Announcement, *, now: datetime) -> Manifest:
    """The Event as `kubectl describe grpojob` shows it. core/v1, whose times and source kubectl prints."""
    names = Names.of(job=job.name, uid=job.uid)
    at = f"{now:%Y-%m-%dT%H:%M:%SZ}"
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.name,
        "metadata": {
            "name": f"{names.base}.{short_hash(f'{said.reason}/{said.key}', 16)}",
            "namespace": job.namespace,
        },
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": job.namespace,
            "name": job.name,
            "uid": job.uid,
        },
        "type": "Warning" if said.is_warning else "Normal",
        "reason": said.reason,
        "message": said.message[:_LONGEST],
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
        "source": {"component": OPERATOR},
        "reportingComponent": OPERATOR,
    }
