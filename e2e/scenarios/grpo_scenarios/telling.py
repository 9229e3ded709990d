"""Applies jobs that cannot work side by side and notes when each says why."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from grpo_cluster.console import say
from grpo_scenarios.causes import Cause
from grpo_scenarios.world import POLL_SECONDS, Object, World

TOLD_WITHIN_SECONDS = 60.0


@dataclass
class Told:
    """What was seen of one job. `seconds` counts from the trouble, `after_apply` from `kubectl apply`."""

    cause: Cause
    applied_at: datetime
    status: Object = field(default_factory=dict)
    seconds: float | None = None
    after_apply: float | None = None

    @property
    def deadline_seconds(self) -> float:
        """From `kubectl apply`."""
        return self.cause.seconds + TOLD_WITHIN_SECONDS

    @property
    def failure(self) -> Object:
        """status.lastFailure."""
        found: Object = self.status.get("lastFailure") or {}
        return found

    @property
    def condition(self) -> Object:
        """The condition that has to say it."""
        conditions: list[Object] = self.status.get("conditions", [])
        return next((c for c in conditions if c["type"] == self.cause.condition), {})

    @property
    def is_in_failure(self) -> bool:
        """Whether lastFailure has the reason and the whole sentence."""
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
        """Whether there is nothing more to come."""
        return self.status.get("phase") in ("Succeeded", "Failed")

    @property
    def is_told(self) -> bool:
        return self.is_in_failure and self.is_in_condition


def tell(world: World, causes: Iterable[Cause], *, at_once: int) -> dict[str, Told]:
    """Run every job until it says its cause or its time is over; `at_once` of them side by side."""
    waiting = list(causes)
    running: dict[str, Told] = {}
    told: dict[str, Told] = {}
    while waiting or running:
        starting = waiting[: at_once - len(running)]
        waiting = waiting[len(starting) :]
        if starting:
            now = datetime.now(UTC)
            running |= {cause.slug: Told(cause, now) for cause in starting}
            world.apply({"apiVersion": "v1", "kind": "List", "items": [cause.job for cause in starting]})
        statuses, over = _statuses(world), []
        for slug, seen in list(running.items()):
            seen.status = statuses.get(slug, {})
            passed = (datetime.now(UTC) - seen.applied_at).total_seconds()
            if seen.is_told:
                seen.after_apply = passed
                seen.seconds = passed - _trouble_after(world, seen)
            if seen.is_told or seen.is_final or passed > seen.deadline_seconds:
                over.append(slug)
                told[slug] = running.pop(slug)
                print_row(seen)
        if over:
            world.kubectl("delete", "grpojob", *over, "--wait=false")
        time.sleep(POLL_SECONDS)
    return told


def print_row(seen: Told) -> None:
    """Cause, seconds and sentence, as docs/causes.md has them."""
    took = "never" if seen.seconds is None else f"{seen.seconds:5.1f} s ({seen.after_apply:5.1f} s)"
    say(f"    {seen.cause.slug:26} {took:20} {seen.failure.get('reason')}: {seen.failure.get('message')}")


def _statuses(world: World) -> dict[str, Object]:
    items = world.target.get("grpojobs", "--namespace", world.namespace)["items"]
    return {item["metadata"]["name"]: item.get("status", {}) for item in items}


def _trouble_after(world: World, seen: Told) -> float:
    """Seconds from the apply until the container ended; 0 for what was wrong from the start."""
    if not seen.cause.seconds:
        return 0.0
    name = seen.failure["pod"]
    pods = [pod for pod in world.pods(f"grpo.dev/job={seen.cause.slug}") if pod["metadata"]["name"] == name]
    for status in (status for pod in pods for status in pod["status"].get("containerStatuses", [])):
        ended = status["state"].get("terminated") or status.get("lastState", {}).get("terminated")
        if ended:
            return (datetime.fromisoformat(ended["finishedAt"]) - seen.applied_at).total_seconds()
    return 0.0
