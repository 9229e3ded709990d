"""Failures in a row: what the pause before an attempt grows with. Pure."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

from grpo_api.contract.retries import got_on, newest_step
from grpo_api.v1alpha1.status import GRPOJobStatus, Phase


@dataclass(frozen=True)
class Streak:
    """Failed attempts up to now that neither ran for long nor committed a newer checkpoint."""

    attempt: int
    failures: int
    saved_step: int | None
    """Newest checkpoint known when the attempt was first seen."""
    running_since: datetime | None = None

    @classmethod
    def begin(cls, status: GRPOJobStatus, now: datetime) -> Self:
        """The first look of a process, which does not know how the attempts before went: the worst is
        assumed, and costs a minute at most."""
        attempt = _attempt(status)
        return cls(attempt, attempt - 1, status.checkpoint_step).seen(status, now)

    def seen(self, status: GRPOJobStatus, now: datetime) -> Self:
        """The streak after another look."""
        attempt = _attempt(status)
        if attempt != self.attempt:
            failures = self.failures + attempt - self.attempt
            # one that ended before it reported its checkpoint leaves none in the status
            return type(self)(attempt, failures, newest_step(self.saved_step, status.checkpoint_step))
        since = self.running_since
        if since is None and status.phase is Phase.RUNNING:
            since = now
        has_got_on = got_on(
            ran_seconds=0.0 if since is None else (now - since).total_seconds(),
            saved_step=status.checkpoint_step,
            saved_before=self.saved_step,
        )
        return replace(self, running_since=since, failures=0 if has_got_on else self.failures)


def _attempt(status: GRPOJobStatus) -> int:
    """A job that has not been started yet is about to make its first."""
    return max(status.attempt, 1)
