"""How the attempts of a job went, as this process saw it: the pause before an attempt grows with the number
of consecutive failures. Pure."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

from grpo_api.contract.retries import ConsecutiveFailures
from grpo_api.v1alpha1.status import GRPOJobStatus, Phase


@dataclass(frozen=True)
class AttemptHistory:
    """The attempt that was seen last, and the failures before it."""

    attempt: int
    failures: ConsecutiveFailures
    running_since: datetime | None = None

    @classmethod
    def begin(cls, status: GRPOJobStatus, now: datetime) -> Self:
        """The history as a new process assumes it. It does not know how the attempts before went and takes
        all of them for failed: the pause that follows is a minute at most."""
        attempt = _attempt(status)
        failures = ConsecutiveFailures(attempt - 1, status.checkpoint_step)
        return cls(attempt, failures).updated(status, now)

    def updated(self, status: GRPOJobStatus, now: datetime) -> Self:
        """The history once the job has been looked at again."""
        attempt = _attempt(status)
        if attempt != self.attempt:
            # an attempt that ended before it reported its checkpoint leaves none in the status
            failures = self.failures.with_failure(
                checkpoint_step=status.checkpoint_step, num_attempts=attempt - self.attempt
            )
            return type(self)(attempt, failures)
        since = self.running_since
        if since is None and status.phase is Phase.RUNNING:
            since = now
        failures = self.failures.with_attempt(
            ran_seconds=0.0 if since is None else (now - since).total_seconds(),
            checkpoint_step=status.checkpoint_step,
        )
        return replace(self, running_since=since, failures=failures)


def _attempt(status: GRPOJobStatus) -> int:
    """A job that has not been started yet is about to make its first."""
    return max(status.attempt, 1)
