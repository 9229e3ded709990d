"""Applies jobs that cannot work, several at a time, and measures how soon each of them says why."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from grpo_cluster.console import say
from grpo_scenarios.causes import Cause
from grpo_scenarios.namespace import POLL_SECONDS, Namespace, Object

REPORTED_WITHIN_SECONDS = 60.0


@dataclass
class CauseMeasurement:
    """What was seen of one job.

    `seconds` counts from the moment the cause happened, `after_apply` from `kubectl apply`; both are None
    until the job has reported its cause.
    """

    cause: Cause
    applied_at: datetime
    status: Object = field(default_factory=dict)
    seconds: float | None = None
    after_apply: float | None = None

    @property
    def deadline_seconds(self) -> float:
        """How long after `kubectl apply` the cause must have been reported."""
        return self.cause.seconds + REPORTED_WITHIN_SECONDS

    @property
    def failure(self) -> Object:
        """status.lastFailure."""
        found: Object = self.status.get("lastFailure") or {}
        return found

    @property
    def condition(self) -> Object:
        """The condition that must report the cause too."""
        conditions: list[Object] = self.status.get("conditions", [])
        return next((c for c in conditions if c["type"] == self.cause.condition), {})

    @property
    def is_in_failure(self) -> bool:
        """Whether status.lastFailure has the reason and all parts of the sentence."""
        return self._is_in(self.failure, self.cause.reason)

    @property
    def is_in_condition(self) -> bool:
        """Whether the condition has them."""
        return self._is_in(self.condition, self.cause.condition_reason or self.cause.reason)

    def _is_in(self, place: Object, reason: str) -> bool:
        message = place.get("message", "")
        return place.get("reason") == reason and all(part in message for part in self.cause.says)

    @property
    def is_final(self) -> bool:
        """Whether the job has ended, so that its status does not change any more."""
        return self.status.get("phase") in ("Succeeded", "Failed")

    @property
    def is_reported(self) -> bool:
        """Whether status.lastFailure and the condition both have the cause."""
        return self.is_in_failure and self.is_in_condition


def measure_causes(
    namespace: Namespace, causes: Iterable[Cause], *, at_once: int
) -> dict[str, CauseMeasurement]:
    """Run each job, `at_once` at a time, until it has reported its cause or its deadline is over."""
    waiting = list(causes)
    running: dict[str, CauseMeasurement] = {}
    measured: dict[str, CauseMeasurement] = {}
    while waiting or running:
        starting = waiting[: at_once - len(running)]
        waiting = waiting[len(starting) :]
        if starting:
            now = datetime.now(UTC)
            running |= {cause.slug: CauseMeasurement(cause, now) for cause in starting}
            namespace.apply({"apiVersion": "v1", "kind": "List", "items": [cause.job for cause in starting]})
        statuses, over = _statuses(namespace), []
        for slug, seen in list(running.items()):
            seen.status = statuses.get(slug, {})
            passed = (datetime.now(UTC) - seen.applied_at).total_seconds()
            if seen.is_reported:
                seen.after_apply = passed
                seen.seconds = passed - _seconds_until_cause(namespace, seen)
            if seen.is_reported or seen.is_final or passed > seen.deadline_seconds:
                over.append(slug)
                measured[slug] = running.pop(slug)
                print_row(seen)
        if over:
            namespace.kubectl("delete", "grpojob", *over, "--wait=false")
        time.sleep(POLL_SECONDS)
    return measured


def print_row(seen: CauseMeasurement) -> None:
    """Print the cause, the seconds and the sentence, as docs/causes.md has them."""
    took = "never" if seen.seconds is None else f"{seen.seconds:5.1f} s ({seen.after_apply:5.1f} s)"
    say(f"    {seen.cause.slug:26} {took:20} {seen.failure.get('reason')}: {seen.failure.get('message')}")


def _statuses(namespace: Namespace) -> dict[str, Object]:
    items = namespace.target.get("grpojobs", "--namespace", namespace.name)["items"]
    return {item["metadata"]["name"]: item.get("status", {}) for item in items}


def _seconds_until_cause(namespace: Namespace, seen: CauseMeasurement) -> float:
    """Seconds from the apply until the container ended; 0 for what is wrong from the start."""
    if not seen.cause.seconds:
        return 0.0
    name = seen.failure["pod"]
    pods = [
        pod for pod in namespace.pods(f"grpo.dev/job={seen.cause.slug}") if pod["metadata"]["name"] == name
    ]
    for status in (status for pod in pods for status in pod["status"].get("containerStatuses", [])):
        ended = status["state"].get("terminated") or status.get("lastState", {}).get("terminated")
        if ended:
            return (datetime.fromisoformat(ended["finishedAt"]) - seen.applied_at).total_seconds()
    return 0.0
