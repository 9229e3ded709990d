"""Failures in a row: what the pause before an attempt grows with. Pure."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

from grpo_api.v1alpha1.status import GRPOJobStatus, Phase

LONG_LIFE_SECONDS = 300.0
"""An attempt that ran this long got on, whether or not it saved a checkpoint."""


@dataclass(frozen=True)
class Streak:
    """Failed attempts up to now that neither ran for long nor committed a newer checkpoint."""

    attempt: int
    failures: int
    saved_step: int
    """Newest checkpoint when the attempt was first seen; -1 for none."""
    running_since: datetime | None = None

    @classmethod
    def begin(cls, status: GRPOJobStatus, now: datetime) -> Self:
        """The first look of a process, which does not know how the attempts before went: the worst is
        assumed, and costs a minute at most."""
        attempt = _attempt(status)
        return cls(attempt, attempt - 1, _saved(status)).seen(status, now)

    def seen(self, status: GRPOJobStatus, now: datetime) -> Self:
        """The streak after another look."""
        attempt = _attempt(status)
        if attempt != self.attempt:
            failures = self.failures + attempt - self.attempt
            return replace(
                self, attempt=attempt, failures=failures, saved_step=_saved(status), running_since=None
            )
        since = self.running_since
        if since is None and status.phase is Phase.RUNNING:
            since = now
        has_lived = since is not None and (now - since).total_seconds() >= LONG_LIFE_SECONDS
        got_on = has_lived or _saved(status) > self.saved_step
        return replace(self, running_since=since, failures=0 if got_on else self.failures)


def _attempt(status: GRPOJobStatus) -> int:
    """A job that has not been started yet is about to make its first."""
    return max(status.attempt, 1)


def _saved(status: GRPOJobStatus) -> int:
    return -1 if status.checkpoint_step is None else status.checkpoint_step
