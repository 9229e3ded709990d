"""One snapshot of a job and its children, as the planner sees them. Frozen; no client objects inside."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from grpo_api.contract.progress import Progress
from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_api.v1alpha1.status import GRPOJobStatus
from grpo_operator.kinds import Manifest


@dataclass(frozen=True)
class JobView:
    """The job itself. `spec` is None when it cannot be read, and `problem` then says why; `is_skewed` when it
    has what this operator has never heard of, so that a newer one may read it."""

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    is_deleting: bool
    spec: GRPOJobSpec | None
    problem: str
    status: GRPOJobStatus
    is_skewed: bool = False


@dataclass(frozen=True)
class Ending:
    """How a container ended."""

    container: str
    exit_code: int
    reason: str
    message: str
    finished_at: datetime | None


@dataclass(frozen=True)
class Trouble:
    """Why a pod does not get on: one CamelCase word and a sentence. `child` names what was refused."""

    reason: str
    message: str
    child: str = ""


@dataclass(frozen=True)
class Signs:
    """When the trainer of the current attempt was heard, on the clock of this process."""

    changed_at: datetime
    """When its heartbeat, step or state last changed; its first answer counts as a change."""
    heard_at: datetime
    """When it last answered."""


FINAL_PHASES = frozenset({"Succeeded", "Failed"})
"""Phases that a pod does not leave again."""


@dataclass(frozen=True)
class PodView:
    """A pod. `position` is (attempt, node index) for a trainer and (replica, incarnation) for a rollout.

    `ending` is the container's end if it is not running now, `last_ending` the one before its last restart.
    `disruption` is set when the cluster or a person took the pod away, `trouble` when it does not start.
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
    ending: Ending | None = None
    last_ending: Ending | None = None
    disruption: Trouble | None = None
    trouble: Trouble | None = None
    created_at: datetime | None = None
    unready_since: datetime | None = None
    """Since when it is not ready, where its node says so; None for a pod that is ready."""
    is_settling: bool = False
    """Whether its containers have ended and its node has not given its verdict on the pod yet. That an
    eviction ended them comes with the verdict, a moment after their end."""

    @property
    def is_over(self) -> bool:
        """Whether all its processes have ended for good."""
        return self.phase in FINAL_PHASES


@dataclass(frozen=True)
class Observed:
    """Everything a plan is made from, besides the settings and the time."""

    job: JobView
    trainers: tuple[PodView, ...] = ()
    """Trainer pods of every attempt, by position."""
    rollouts: tuple[PodView, ...] = ()
    """Rollout pods, by position."""
    highest_incarnations: Mapping[int, int] = field(default_factory=dict)
    """By replica the highest incarnation of a rollout pod that this process has ever seen."""
    services: Mapping[str, Manifest] = field(default_factory=dict)
    """Our Services by name."""
    network_policies: Mapping[str, Manifest] = field(default_factory=dict)
    """Our NetworkPolicies by name."""
    config_names: frozenset[str] = frozenset()
    """Names of our ConfigMaps."""
    frozen_spec: GRPOJobSpec | None = None
    """The spec of the revision in status, from its ConfigMap."""
    frozen_problem: str = ""
    """Why that ConfigMap is there but cannot be read."""
    progress: Progress | None = None
    """Newest report of the trainer of the current attempt, if this process has one."""
    complaint: Trouble | None = None
    """Why the trainer cannot be heard or understood, newer than `progress`."""
    is_news: bool = True
    """Whether `progress` or `complaint` came after the status was last written by this process."""
    signs: Signs | None = None
    """When that trainer was last heard; None before its first answer."""
    failures_in_a_row: int = 0
    """Attempts before the current one that failed one after the other without getting on."""
    failing_since: datetime | None = None
    """When this process first saw a pod of the current attempt fail."""
    refusal: Trouble | None = None
    """Why the API server refused a child at the last try."""
