"""What the policies of a plan hand to each other, and what comes out at the end."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import GRPOJobStatus
from grpo_operator.children.child import Child
from grpo_operator.children.frozen_job import FrozenJob
from grpo_operator.cluster.kinds import PODS, Kind
from grpo_operator.observe.observed import Observed, PodView
from grpo_operator.plan.facts import AttemptFacts


class Stage(StrEnum):
    """Where a job stands while it is planned."""

    ACTIVE = "Active"
    FINISHED = "Finished"


@dataclass(frozen=True)
class Deletion:
    """An object to delete. The uid protects another object of the same name."""

    kind: Kind
    name: str
    uid: str
    grace_seconds: int | None = None
    """How long a pod may take to end; None for what its spec says."""


@dataclass(frozen=True)
class Stop:
    """A pod that its node is to end, and that stays with its log. The uid protects another of its name."""

    name: str
    uid: str


@dataclass(frozen=True)
class Draft:
    """A plan in the making.

    `facts` are those of the attempt in `status`. `frozen` is None until a readable spec is frozen.
    `waits_for` says what keeps trainer pods from being made, and `rollout_waits_for` what keeps a rollout
    pod from being made. `early_end` says why a pod that others took away is not made again yet.
    `given_up_engines` says by uid why engines that run are replaced. `left_alone` says why this operator
    leaves the job as it is until a person has done something about it. `notes` are those of this operator
    for the condition Ready.
    """

    status: GRPOJobStatus
    facts: AttemptFacts
    stage: Stage = Stage.ACTIVE
    frozen: FrozenJob | None = None
    waits_for: str = ""
    rollout_waits_for: ReasonMessage | None = None
    early_end: ReasonMessage | None = None
    given_up_engines: Mapping[str, str] = field(default_factory=dict)
    left_alone: ReasonMessage | None = None
    create: tuple[Child, ...] = ()
    delete: tuple[Deletion, ...] = ()
    stop: tuple[Stop, ...] = ()
    requeue_after: float | None = None
    notes: str = ""

    @classmethod
    def begin(cls, observed: Observed, now: datetime) -> "Draft":
        """The draft that the first policy gets."""
        status = observed.job.status
        return cls(status=status, facts=AttemptFacts.of(observed, now, frozen=None, status=status))

    @property
    def is_running(self) -> bool:
        """Whether the job is active and every trainer pod of its attempt runs, or has done its part."""
        return self.stage is Stage.ACTIVE and self.facts.is_running and not self.is_held_back

    @property
    def is_held_back(self) -> bool:
        """Whether the job has given its nodes back and does not make its pods again yet."""
        waiting = self.status.waiting_for_room
        return waiting is not None and waiting.held_back_until is not None

    def with_facts(self, observed: Observed, now: datetime) -> "Draft":
        """The same draft with the facts computed again, for a policy that changed the attempt."""
        facts = AttemptFacts.of(observed, now, frozen=self.frozen, status=self.status)
        return replace(self, facts=facts)

    def with_status(self, **changes: object) -> "Draft":
        """The same draft with fields of the status changed."""
        return replace(self, status=self.status.model_copy(update=changes))

    def creating(self, *children: Child) -> "Draft":
        """The same draft with more children."""
        return replace(self, create=self.create + children)

    def deleting(self, *deletions: Deletion) -> "Draft":
        """The same draft with more deletions."""
        return replace(self, delete=self.delete + deletions)

    def deleting_pods(self, pods: Iterable[PodView], *, grace_seconds: int | None = None) -> "Draft":
        """The same draft without these pods, which may take `grace_seconds` to end or what their specs say.
        One that is being deleted already is not deleted again."""
        each = (pod for view in pods for pod in view.pods if not pod.is_deleting)
        return self.deleting(*(Deletion(PODS, pod.name, pod.uid, grace_seconds) for pod in each))

    def stopping_pods(self, pods: Iterable[PodView]) -> "Draft":
        """The same draft with these pods ended by their nodes, but those that end already."""
        each = (pod for pod in pods if not (pod.is_stopping or pod.is_deleting))
        return replace(self, stop=self.stop + tuple(Stop(pod.name, pod.uid) for pod in each))

    def waking_after(self, seconds: float) -> "Draft":
        """The same draft, planned again after this time at the latest."""
        earliest = seconds if self.requeue_after is None else min(seconds, self.requeue_after)
        return replace(self, requeue_after=earliest)


Policy = Callable[[Draft, Observed, datetime], Draft]
"""One decision: pure, and leaves alone what it is not about."""


@dataclass(frozen=True)
class EventDraft:
    """An Event that is not written yet. `key` distinguishes it from others with its reason."""

    why: ReasonMessage
    key: str
    is_warning: bool = False

    @property
    def identity(self) -> tuple[str, str]:
        """What makes it the same Event as another: the reason and the key."""
        return self.why.reason, self.key


@dataclass(frozen=True)
class Plan:
    """What to do about a job. The status is written first: a crash between a decision and its execution must
    not lose the decision. The Events are written once that has succeeded."""

    status: GRPOJobStatus
    create: tuple[Child, ...] = ()
    delete: tuple[Deletion, ...] = ()
    stop: tuple[Stop, ...] = ()
    requeue_after: float | None = None
    events: tuple[EventDraft, ...] = ()
    notes: str = ""
    """What this operator notes in the condition Ready, whether or not another one notes something else."""
