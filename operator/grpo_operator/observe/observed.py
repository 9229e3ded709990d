"""A job and its children at one moment, as the planner sees them. Immutable; no client objects inside."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.progress import Progress
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.judge.engines import EngineAbsence
from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_api.v1alpha1.status import GRPOJobStatus, Phase
from grpo_operator.cluster.kinds import Kind, KubeObject

FINAL_PHASES = frozenset({"Succeeded", "Failed"})
"""Phases that a pod does not leave again."""
_ORPHAN = "orphan"
"""The API server's finalizer for a deletion that leaves the children (`--cascade=orphan`)."""


@dataclass(frozen=True)
class JobView:
    """The job itself. `spec` is None when this operator cannot read it, and `problem` then says why."""

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    is_deleting: bool
    spec: GRPOJobSpec | None
    problem: str
    status: GRPOJobStatus
    accepted_loss: str = ""
    """The loss that its annotation accepts: the step of a checkpoint that is no longer there."""
    finalizers: tuple[str, ...] = ()
    queue_label: str = ""
    """The queue that its label names."""
    priority_label: str = ""
    """The priority class that its label names."""
    suspend: bool | None = None
    """`spec.suspend`, also where the rest of the spec cannot be read; None where it is absent."""
    tracked_by: str = ""
    """The GitOps controller that would create it again if it were deleted; empty where none would."""

    @property
    def identity(self) -> tuple[str, str]:
        """(namespace, uid), by which its children are found."""
        return self.namespace, self.uid

    @property
    def is_held(self) -> bool:
        """Whether finalizers keep the job, once it is being deleted, and its children go with it."""
        return bool(self.finalizers) and _ORPHAN not in self.finalizers


@dataclass(frozen=True)
class ContainerTermination:
    """How a container ended. `reason` and `message` are the kubelet's."""

    container: str
    exit_code: int
    reason: str
    message: str
    finished_at: datetime | None
    has_default_image: bool = False
    """Whether the job names no image, so that the container ran the operator's default."""


@dataclass(frozen=True)
class PodView:
    """A pod. `position` is (attempt, node index) for a trainer and (replica, incarnation) for a rollout.

    `termination` says how the container ended if it is not running now, `last_termination` how it ended
    before its last restart. `disruption` is set when the cluster or a person took the pod away,
    `start_problem` when it does not start.
    """

    name: str
    uid: str
    position: tuple[int, int]
    phase: str
    is_ready: bool
    is_deleting: bool
    node: str = ""
    ip: str = ""
    restarts: int = 0
    image: str = ""
    """The image that its container asks for."""
    image_id: str = ""
    """What its node calls the image that its container runs; empty until it has run."""
    termination: ContainerTermination | None = None
    last_termination: ContainerTermination | None = None
    disruption: ReasonMessage | None = None
    has_exceeded_own_limit: bool = False
    """Whether `disruption` is an eviction for storage that the pod used beyond its own limit."""
    start_problem: ReasonMessage | None = None
    created_at: datetime | None = None
    unseen_by: str = ""
    """The scheduler that is to find it a node and has not looked at it yet; empty once it has."""
    scheduled_at: datetime | None = None
    """When it was bound to its node; None while it has none."""
    given_back: int = 0
    """How often its job had given its nodes back when the pod was made."""
    must_end_by: datetime | None = None
    """When its grace period is over, once it is being deleted."""
    unready_since: datetime | None = None
    """Since when it is not ready, where its node says so; None for a pod that is ready."""
    is_stopping: bool = False
    """Whether the operator has asked its node to end it."""
    is_settling: bool = False
    """Whether its containers have ended and its node has not reported the end of the pod yet. An eviction
    shows only in that report, a moment after the containers ended."""
    node_index: int = 0
    """Index of a rollout pod among the pods of its engine."""

    @property
    def pods(self) -> tuple["PodView", ...]:
        """Itself; of an engine its pods."""
        return (self,)

    @property
    def is_over(self) -> bool:
        """Whether all its processes have ended for good."""
        return self.phase in FINAL_PHASES

    @property
    def is_alive(self) -> bool:
        """Whether it neither has ended nor is being deleted."""
        return not self.is_over and not self.is_deleting

    @property
    def is_done(self) -> bool:
        """Whether its container ended with exit code 0: of a trainer pod, that every step is done.

        The exit code counts even where the reason is OOMKilled. cgroup v1 gives that reason whichever process
        of the container was killed, even when the supervisor itself ended well.
        """
        return self.termination is not None and self.termination.exit_code == ExitCode.DONE

    @property
    def has_failed(self) -> bool:
        """Whether it ended, or was taken away, before it was done."""
        is_gone = self.termination is not None or self.disruption is not None or self.phase == "Failed"
        return is_gone and not self.is_done

    @property
    def has_never_run(self) -> bool:
        """Whether its node gave it up before any of its containers ran."""
        has_ended_before = self.last_termination is not None or self.restarts > 0
        return self.is_over and self.termination is None and not has_ended_before


@dataclass(frozen=True)
class EngineView(PodView):
    """The rollout pods of one engine, mostly one, with the fields of a pod as they hold for the engine. The
    name, the node and the termination are those of the pod that a person should look at."""

    members: tuple[PodView, ...] = ()
    """Its pods, by node index."""
    is_whole: bool = True
    """Whether none of them is missing."""

    @property
    def pods(self) -> tuple[PodView, ...]:
        """Its members."""
        return self.members

    @property
    def has_several_pods(self) -> bool:
        """Whether it is made of several, of which some may be missing."""
        return len(self.members) > 1 or not self.is_whole


@dataclass(frozen=True)
class PodGroupView:
    """A PodGroup of a gang scheduler."""

    kind: Kind
    name: str
    uid: str
    created_at: datetime | None = None
    is_deleting: bool = False
    woken_at: datetime | None = None
    """When it was last written to wake its scheduler; None while it was not."""


@dataclass(frozen=True)
class PodSetView:
    """A set of pods of a Workload, as Kueue has admitted it."""

    declared: int
    """How many pods it was made for."""
    count: int
    """How many pods it asks for, or has quota for once it is admitted: none that is reclaimable."""
    flavors: tuple[str, ...] = ()
    """Names of the ResourceFlavors that the quota is of."""
    updates: tuple[KubeObject, ...] = ()
    """What admission checks change about its pods."""


@dataclass(frozen=True)
class WorkloadView:
    """A Workload of Kueue, by which it knows a job or an engine."""

    name: str
    uid: str
    resource_version: str
    generation: int
    queue: str
    pod_sets: Mapping[str, PodSetView]
    priority_class: str = ""
    """Name of its WorkloadPriorityClass; empty where it has none."""
    priority: int = 0
    created_at: datetime | None = None
    conditions: tuple[KubeObject, ...] = ()
    """As they are stored."""
    is_deleting: bool = False
    is_active: bool = True
    """Whether Kueue may admit it. Somebody may have set that to false, as Kueue does after many tries."""
    open_checks: Mapping[str, str] = field(default_factory=dict)
    """What each admission check says that is not ready, or the name of its state."""

    def condition(self, kind: str) -> KubeObject | None:
        """Its condition of this type."""
        return next((found for found in self.conditions if found["type"] == kind), None)

    def is_true(self, kind: str) -> bool:
        """Whether its condition of this type is True."""
        found = self.condition(kind)
        return found is not None and found["status"] == "True"

    @property
    def is_evicted(self) -> bool:
        """Whether Kueue has taken the quota back. The pods have to go."""
        return self.is_true("Evicted")

    @property
    def is_finished(self) -> bool:
        """Whether it has no quota any more, and never gets another."""
        return self.is_true("Finished")

    @property
    def is_admitted(self) -> bool:
        """Whether there may be pods."""
        return self.is_true("Admitted") and not (self.is_evicted or self.is_finished or self.is_deleting)

    @property
    def has_quota(self) -> bool:
        """Whether quota is reserved for it, also while its pods end."""
        return self.is_true("QuotaReserved")


@dataclass(frozen=True)
class Liveness:
    """When the trainer of the current attempt last answered."""

    changed_at: datetime
    """When its heartbeat, step or state last changed; its first answer counts as a change."""
    answered_at: datetime
    """When it last answered."""
    quiet_seconds: float = 0.0
    """How long its answers have shown no change. Of the time between two answers, at most
    `LONGEST_GAP_SECONDS` count: nobody knows what it did meanwhile, and a clock may have been set."""


@dataclass(frozen=True)
class TrainerReport:
    """What the trainer of one attempt reported last."""

    uid: str = ""
    attempt: int = 0
    progress: Progress | None = None
    """Its newest progress, if it ever answered."""
    problem: ReasonMessage | None = None
    """Why nothing newer than `progress` is known: the trainer does not answer, or its answer cannot be
    read."""
    liveness: Liveness | None = None
    """When it last answered; None before its first answer."""
    silent_since: datetime | None = None
    """When this process first got no answer; None while it answers."""
    absence: EngineAbsence = field(default_factory=EngineAbsence)
    """How long its answers have named no Current engine."""
    hung_since: Mapping[str, datetime] = field(default_factory=dict)
    """Engines that its newest report calls hung, by instance: since when this process has known it."""
    is_written: bool = False
    """Whether this process has written it into the status."""
    is_superseded: bool = False
    """Whether another operator wrote the status after we heard this: theirs may be newer."""

    @property
    def is_answering(self) -> bool:
        """Whether its last answer came and could be read."""
        return self.problem is None and self.silent_since is None

    @property
    def is_news(self) -> bool:
        """Whether the status is yet to be updated from it."""
        return not (self.is_written or self.is_superseded)


@dataclass(frozen=True)
class OtherJob:
    """The job that `resumeFrom.job` names, as far as the one that waits for it must know it."""

    uid: str
    is_there: bool
    """Whether it exists; else only its pods may be left."""
    claim_name: str | None = None
    """Where its checkpoints are."""
    problem: str = ""
    """Why its spec cannot be read."""
    phase: Phase = Phase.PENDING
    living_trainer: str = ""
    """A trainer pod of it whose processes may be alive; empty where there is none."""

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, which is final."""
        return self.phase in (Phase.SUCCEEDED, Phase.FAILED)


@dataclass(frozen=True)
class JobAndPods:
    """A job with its trainer pods and its engines, both by position."""

    job: JobView
    trainers: tuple[PodView, ...] = ()
    rollouts: tuple[EngineView, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """A child that the API server refused at the last try, and why."""

    child: str
    why: ReasonMessage


@dataclass(frozen=True)
class OtherBuild:
    """A rollout pod that ran another build of the image than the run, and when it was last seen."""

    seen_at: datetime
    message: str


@dataclass(frozen=True)
class EarlyEnd:
    """How many pods of one slot in a row others took away within seconds of their creation, and the last of
    them."""

    num: int
    name: str
    ended_at: datetime
    lived_seconds: float


@dataclass(frozen=True)
class Remembered:
    """What this process knows about a job that the cluster does not show."""

    report: TrainerReport = TrainerReport()
    """What the trainer of the current attempt reported."""
    failing_since: datetime | None = None
    """When this process first saw a trainer pod of the current attempt fail."""
    highest_incarnations: Mapping[int, int] = field(default_factory=dict)
    """The highest incarnation of a rollout pod that this process has seen, by replica."""
    found_engines: frozenset[tuple[int, int]] = frozenset()
    """(replica, incarnation) of the engines that were there when this process first looked."""
    seen_pods: frozenset[str] = frozenset()
    """Names of rollout pods that this process has seen, of engines of which a pod is still there."""
    other_builds: Mapping[int, OtherBuild] = field(default_factory=dict)
    """The newest rollout pod that this process saw run another build of the image, by replica."""
    early_ends: Mapping[str, EarlyEnd] = field(default_factory=dict)
    """Early ends by the name of a trainer pod or `rollout_slot` of a replica."""
    refusal: Refusal | None = None
    """The child that the API server refused at the last try, if it refused one."""
    tokens_made_at: datetime | None = None
    """When this process made the Secret with the tokens; None where it did not."""
    told_notes: str | None = None
    """The notes that this process wrote into the condition Ready; None before the first time."""
    undeletable: str = ""
    """Why the API server did not let this process delete the job; empty where it has not tried."""


@dataclass(frozen=True)
class Observed:
    """Everything a plan is made from, besides the settings and the time."""

    job: JobView
    trainers: tuple[PodView, ...] = ()
    """Trainer pods of every attempt, by position."""
    rollouts: tuple[EngineView, ...] = ()
    """The engines in rollout pods, by position."""
    services: Mapping[str, KubeObject] = field(default_factory=dict)
    """Our Services by name."""
    network_policies: Mapping[str, KubeObject] = field(default_factory=dict)
    """Our NetworkPolicies by name."""
    pod_groups: Mapping[str, PodGroupView] = field(default_factory=dict)
    """Our PodGroups by name."""
    workloads: Mapping[str, WorkloadView] = field(default_factory=dict)
    """Our Workloads by name."""
    queue_problem: str = ""
    """Why Workloads are not known; empty where they are."""
    num_before_in_queue: int | None = None
    """How many Workloads are before that of the job; None where Kueue does not say it."""
    cluster_objects: Mapping[tuple[Kind, str], KubeObject | str] = field(default_factory=dict)
    """Objects of no namespace that were read, each as it is or why it could not be read."""
    config_names: frozenset[str] = frozenset()
    """Names of our ConfigMaps."""
    stored_spec: GRPOJobSpec | None = None
    """The spec of the revision in status, from its ConfigMap."""
    pod_templates: Mapping[str, KubeObject] = field(default_factory=dict)
    """The pod templates that the run started with; empty before they are stored."""
    config_digest: str = ""
    """Digest of the ConfigMap of the revision in status; empty where there is none."""
    stored_problem: str = ""
    """Why that ConfigMap is there but cannot be read."""
    crd_problem: str = ""
    """What the CRD of the cluster lacks, and what to do about it; empty when it lacks nothing."""
    other_job: OtherJob | None = None
    """The job that `resumeFrom.job` names, while this one has not started; None where there is none."""
    remembered: Remembered = Remembered()
    """What this process remembers of the job."""
