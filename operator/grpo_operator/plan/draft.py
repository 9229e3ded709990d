"""What the policies of a plan hand to each other, and what comes out at the end."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from grpo_api.v1alpha1.status import GRPOJobStatus
from grpo_operator.children.run import Child, Run
from grpo_operator.kinds import Kind
from grpo_operator.observed import Observed, Trouble


class Stage(StrEnum):
    """Where a job stands while it is planned."""

    ACTIVE = "Active"
    FINISHED = "Finished"


@dataclass(frozen=True)
class Deletion:
    """An object to delete. The uid keeps a namesake safe."""

    kind: Kind
    name: str
    uid: str


@dataclass(frozen=True)
class Draft:
    """A plan in the making. `run` is None until a readable spec is frozen; `waits_for` names what keeps a
    new attempt from starting; `blocked` is why this operator keeps its hands off the job."""

    status: GRPOJobStatus
    stage: Stage = Stage.ACTIVE
    run: Run | None = None
    waits_for: str = ""
    blocked: Trouble | None = None
    create: tuple[Child, ...] = ()
    delete: tuple[Deletion, ...] = ()
    requeue_after: float | None = None

    def with_status(self, **changes: object) -> "Draft":
        """The same draft with fields of the status changed."""
        return replace(self, status=self.status.model_copy(update=changes))

    def creating(self, *children: Child) -> "Draft":
        """The same draft with more children."""
        return replace(self, create=self.create + children)

    def deleting(self, *deletions: Deletion) -> "Draft":
        """The same draft with more deletions."""
        return replace(self, delete=self.delete + deletions)

    def waking_after(self, seconds: float) -> "Draft":
        """The same draft, looked at again after this time at the latest."""
        earliest = seconds if self.requeue_after is None else min(seconds, self.requeue_after)
        return replace(self, requeue_after=earliest)


Policy = Callable[[Draft, Observed, datetime], Draft]
"""One decision: pure, and leaves alone what is not its business."""


@dataclass(frozen=True)
class Announcement:
    """Something a person wants to be told once, as an Event. `key` tells it from others of its reason."""

    reason: str
    message: str
    key: str
    is_warning: bool = False


@dataclass(frozen=True)
class Plan:
    """What to do about a job. The status is written first: what is in it must not be forgotten by a crash
    between a decision and its deeds. It is announced when that has succeeded."""

    status: GRPOJobStatus
    create: tuple[Child, ...] = ()
    delete: tuple[Deletion, ...] = ()
    requeue_after: float | None = None
    announcements: tuple[Announcement, ...] = ()
