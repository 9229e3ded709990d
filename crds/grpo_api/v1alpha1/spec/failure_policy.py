"""`failurePolicy`: what follows a failure, by rules of the user or by default."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from grpo_api.model import ApiModel
from grpo_api.rule import KeyedBy


class FailureAction(StrEnum):
    """What a rule does about a failure."""

    FAIL = "Fail"
    RESTART = "Restart"
    IGNORE = "Ignore"
    SUSPEND = "Suspend"


class FailedRole(StrEnum):
    """The pods that a failure may be of."""

    TRAINER = "trainer"
    ROLLOUT = "rollout"


class FailureRule(ApiModel):
    """A rule about the failures that match all its fields."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """Name of the rule in messages."""
    action: FailureAction
    """What follows. `Fail` ends the job. `Restart` and `Ignore` start the next attempt, with Restart
    counted. `Suspend` suspends the job until `spec.suspend` changes; with `grpo-runtime
    run` it ends the run."""
    role: FailedRole | None = None
    """Pods that the failure is of. With `rollout` also of engines that would only be started again; without
    it any failure that ends the attempt."""
    exit_codes: (
        Annotated[tuple[Annotated[int, Field(ge=1, le=255)], ...], Field(min_length=1, max_length=64)] | None
    ) = None
    """Exit codes, of which one must be the failure's."""
    reasons: (
        Annotated[tuple[Annotated[str, Field(max_length=253)], ...], Field(min_length=1, max_length=64)]
        | None
    ) = None
    """Reasons as in `status.lastFailure`, of which one must be the failure's."""
    from_attempt: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """First attempt that the rule is about. Defaults to 1."""

    def is_about(self, *, role: str, exit_code: int | None, reason: str, attempt: int) -> bool:
        """Whether a failure matches the rule."""
        return (
            self.role in (None, role)
            and (self.exit_codes is None or exit_code in self.exit_codes)
            and (self.reasons is None or reason in self.reasons)
            and attempt >= (self.from_attempt or 1)
        )


class FailurePolicySpec(ApiModel):
    """What happens when the trainer fails."""

    max_restarts: Annotated[int, Field(ge=0, le=1000)] = 3
    """How many failed attempts are retried without progress between them. Progress is a committed checkpoint
    of a higher step than any before, and sets the count back to 0. A job without checkpoint.claimName keeps
    no checkpoints, so its count never goes back. Evictions and node losses are retried and do not count,
    except the eviction of a pod that used more storage than its own limit."""
    failure_rules: Annotated[
        Annotated[tuple[FailureRule, ...], Field(max_length=32), KeyedBy("name")] | None, Field(alias="rules")
    ] = None
    """Rules about failures, of which the first that matches decides what follows; else the exit code
    does."""
