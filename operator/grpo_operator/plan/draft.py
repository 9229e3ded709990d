"""What the policies of a plan hand to each other, and what comes out at the end."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, GRPOJobStatus
from grpo_operator.children.child import Child
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.cluster.kinds import PODS, Kind, KubeObject
from grpo_operator.observe.observed import JobView, Observed, PodView
from grpo_operator.plan.conditions import is_true
from grpo_operator.plan.facts import AttemptFacts


class Stage(StrEnum):
    """Where a job stands while it is planned. `plan/__init__.py` says which policies run in each."""

    NEW = "New"
    """It has not started: there is no attempt and no snapshot."""
    LEFT_ALONE = "LeftAlone"
    """This operator leaves it as it is until a person has done something about it."""
    ACTIVE = "Active"
    """It has an attempt, which waits, starts or trains."""
    HELD_BACK = "HeldBack"
    """It has given its nodes back, and makes the pods of its attempt again later."""
    SUSPENDED = "Suspended"
    """It is to have no pods until what suspends it is over, and then continues as the next attempt."""
    STOPPING = "Stopping"
    """It is past its active deadline, and fails once its pods have saved a checkpoint and ended."""
    ENDED = "Ended"
    """It is complete or has failed, which is final."""
    DELETED = "Deleted"
    """Its object is being deleted."""

    @classmethod
    def of(cls, job: JobView) -> "Stage":
        """Where a job stands as it was observed."""
        if job.is_deleting:
            return cls.DELETED
        if is_true(job.status, ConditionType.FINISHED):
            return cls.ENDED
        if job.status.attempt == 0:
            return cls.NEW
        if job.status.stopping is not None:
            return cls.STOPPING
        if job.status.is_suspended:
            return cls.SUSPENDED
        return cls.HELD_BACK if job.status.is_held_back else cls.ACTIVE


@dataclass(frozen=True)
class Deletion:
    """An object to delete. The uid protects another object of the same name."""

    kind: Kind
    name: str
    uid: str
    grace_seconds: int | None = None
    """How long a pod may take to end; None for what its spec says."""
    resource_version: str = ""
    """The state in which to delete it; empty for any."""


@dataclass(frozen=True)
class Stop:
    """A pod that its node is to end, and that stays with its log. The uid protects another of its name."""

    name: str
    uid: str


@dataclass(frozen=True)
class WorkloadPatch:
    """Changes to the status of a Workload, in exactly this state of it: Kueue writes it too."""

    name: str
    resource_version: str
    conditions: tuple[KubeObject, ...]
    """All of them."""
    other: KubeObject = field(default_factory=dict)
    """Fields beside the conditions; None removes one."""


@dataclass(frozen=True)
class EventDraft:
    """An Event that is not written yet. `key` distinguishes it from others with its reason."""

    why: ReasonMessage
    key: str
    is_warning: bool = False

    @property
    def identity(self) -> tuple[str, str]:
        """The identity of an Event: its reason and its key."""
        return self.why.reason, self.key


@dataclass(frozen=True)
class Draft:
    """A plan in the making."""

    status: GRPOJobStatus
    facts: AttemptFacts
    """The facts of the attempt in `status`."""
    stage: Stage
    known_snapshot: JobSnapshot | None = None
    """What the job runs; None where that is not known."""
    left_alone: ReasonMessage | None = None
    """Why the job is left alone, in that stage."""
    waits_for: ReasonMessage | None = None
    """What keeps trainer pods from being made. The conditions say it."""
    lost_node: EventDraft | None = None
    """The question whether the node of a pod is lost that does not end, which a condition asks too."""
    without_pods: ReasonMessage | None = None
    """Why the job is to have no pods, in the stages in which it has none."""
    rollout_waits_for: ReasonMessage | None = None
    """What keeps a rollout pod from being made. The conditions say it."""
    early_end: ReasonMessage | None = None
    """Why a pod that others took away is not made again yet."""
    given_up_engines: Mapping[str, str] = field(default_factory=dict)
    """Why engines that run are replaced, by uid."""
    create: tuple[Child, ...] = ()
    delete: tuple[Deletion, ...] = ()
    stop: tuple[Stop, ...] = ()
    patch: tuple[WorkloadPatch, ...] = ()
    requeue_after: float | None = None
    """Seconds after which to plan again at the latest; None for when something happens."""
    notes: str = ""
    """What this operator notes in the condition Ready."""

    @classmethod
    def begin(cls, observed: Observed, now: datetime) -> "Draft":
        """The draft that the first policy gets."""
        status = observed.job.status
        facts = AttemptFacts.of(observed, now, snapshot=None, status=status)
        return cls(status=status, facts=facts, stage=Stage.of(observed.job))

    @property
    def snapshot(self) -> JobSnapshot:
        """What the job runs. It is known of each that is active or held back."""
        assert self.known_snapshot is not None
        return self.known_snapshot

    @property
    def is_running(self) -> bool:
        """Whether the job is active and every trainer pod of its attempt runs, or has done its part."""
        return self.stage is Stage.ACTIVE and self.facts.is_running

    def with_facts(self, observed: Observed, now: datetime) -> "Draft":
        """The same draft with the facts computed again, for a policy that changed the attempt."""
        facts = AttemptFacts.of(observed, now, snapshot=self.known_snapshot, status=self.status)
        return replace(self, facts=facts)

    def leaving_alone(self, why: ReasonMessage) -> "Draft":
        """The draft of a job that this operator leaves as it is."""
        return replace(self, stage=Stage.LEFT_ALONE, left_alone=why)

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
class Plan:
    """What to do about a job. The status is written first: a crash between a decision and its execution must
    not lose the decision. The Events are written once that has succeeded."""

    status: GRPOJobStatus
    create: tuple[Child, ...] = ()
    delete: tuple[Deletion, ...] = ()
    stop: tuple[Stop, ...] = ()
    patch: tuple[WorkloadPatch, ...] = ()
    requeue_after: float | None = None
    events: tuple[EventDraft, ...] = ()
    notes: str = ""
    """What this operator notes in the condition Ready, whether or not another one notes something else."""
