"""What several policies need to know about one attempt of a job, computed once. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum

from grpo_api.contract.progress import Progress
from grpo_api.judge.clocks import has_begun
from grpo_api.v1alpha1.status import ConditionStatus, ConditionType, GRPOJobStatus, Phase
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.observe.observed import Observed, PodView
from grpo_operator.plan.blockers import Blocker, engine_blocker, trainer_blocker
from grpo_operator.plan.conditions import condition, is_true
from grpo_operator.plan.last_failure import with_advice
from grpo_operator.plan.termination import termination_message_of


class FirstStep(Enum):
    """Whether an attempt has begun its first step."""

    NOT_BEGUN = "not begun"
    BEGUN = "begun"
    UNKNOWN = "unknown"
    """Its trainer runs, or ran, and has not answered this process, or does not answer now."""


@dataclass(frozen=True)
class AttemptFacts:
    """One attempt: its trainer pods, what they report, and what blocks it."""

    attempt: int
    gang: Mapping[int, PodView] = field(default_factory=dict)
    """Trainer pods by node index."""
    missing: tuple[int, ...] = ()
    """Node indices without a trainer pod; empty while no readable spec says how many there should be."""
    was_complete: bool = False
    """Whether every trainer pod of the attempt has been seen before."""
    is_running: bool = False
    """Whether every trainer pod runs, or has done its part."""
    first_step: FirstStep = FirstStep.UNKNOWN
    """Whether the attempt has begun its first step, as far as this process knows."""
    decided_at: datetime | None = None
    """When it was decided to start this attempt; None for the first, and once the attempt runs."""
    first_pod_at: datetime | None = None
    """When the first of its trainer pods was created."""
    earlier: tuple[PodView, ...] = ()
    """Trainer pods of earlier attempts whose processes may be alive."""
    gang_room_at: datetime | None = None
    """When the whole gang had room: its last pod got a node. None while a pod is missing or has none."""
    room_at: datetime | None = None
    """When it had room to start: the whole gang and, in mode Disaggregated, one rollout pod had nodes. None
    while it has to wait for room."""
    trainer_blocker: Blocker | None = None
    """The first trainer pod that does not start."""
    engine_blocker: Blocker | None = None
    """The first rollout pod that does not start or keeps ending."""
    last_progress: Progress | None = None
    """What trainer pod 0 last answered to this process, whether or not the status says it already."""
    new_progress: Progress | None = None
    """What trainer pod 0 reported since this process last wrote the status."""

    @classmethod
    def of(
        cls, observed: Observed, now: datetime, *, snapshot: JobSnapshot | None, status: GRPOJobStatus
    ) -> "AttemptFacts":
        """The facts about the attempt in `status`, which a plan may have advanced beyond the observed one."""
        attempt = status.attempt
        gang = gang_of(observed, attempt=attempt)
        missing = missing_of(gang, num_nodes=snapshot.spec.trainer.num_nodes) if snapshot else ()
        is_whole = snapshot is not None and not missing
        is_running = is_whole and all(map(_runs, gang.values()))
        gang_room_at = _gang_room_at(gang.values()) if is_whole else None
        restarting = condition(status, ConditionType.RESTARTING)
        is_restarting = restarting is not None and is_true(status, ConditionType.RESTARTING)
        return cls(
            attempt=attempt,
            gang=gang,
            missing=missing,
            was_complete=observed.job.status.attempt == attempt and has_all_trainers(observed.job.status),
            is_running=is_running,
            first_step=_first_step(observed, status, gang, is_running=is_running, is_missing=bool(missing)),
            decided_at=restarting.last_transition_time if restarting and is_restarting else None,
            earlier=tuple(pod for pod in observed.trainers if pod.position[0] < attempt and not pod.is_over),
            gang_room_at=gang_room_at,
            room_at=_room_at(
                observed, gang_room_at, has_rollout=snapshot is not None and snapshot.has_rollout
            ),
            first_pod_at=min((pod.created_at for pod in gang.values() if pod.created_at), default=None),
            trainer_blocker=trainer_blocker(gang.values(), now),
            engine_blocker=_engine_blocker(observed, status, snapshot, now),
            last_progress=_last_progress(observed, attempt=attempt),
            new_progress=_new_progress(observed, gang.get(0), attempt=attempt),
        )

    @property
    def first(self) -> PodView | None:
        """Trainer pod 0."""
        return self.gang.get(0)


def _engine_blocker(
    observed: Observed, status: GRPOJobStatus, snapshot: JobSnapshot | None, now: datetime
) -> Blocker | None:
    found = engine_blocker(observed.rollouts, now)
    if found is None or snapshot is None:
        return found
    return replace(found, why=with_advice(found.why, status, snapshot=snapshot))


def gang_of(observed: Observed, *, attempt: int) -> dict[int, PodView]:
    """Trainer pods of an attempt by node index."""
    return {pod.position[1]: pod for pod in observed.trainers if pod.position[0] == attempt}


def missing_of(gang: Mapping[int, PodView], *, num_nodes: int) -> tuple[int, ...]:
    """Node indices without a pod."""
    return tuple(index for index in range(num_nodes) if index not in gang)


def has_all_trainers(status: GRPOJobStatus) -> bool:
    """Whether the status says that every trainer pod of its attempt exists.

    This distinguishes a pod that is yet to be made from one that was taken away, also after a restart of the
    operator: the phase leaves Pending and Restarting only when all pods exist, and goes back there before
    pods are given back.
    """
    return status.phase in {Phase.STARTING, Phase.RUNNING}


def has_reported(status: GRPOJobStatus, *, attempt: int) -> bool:
    """Whether the status has a report of the trainer of this attempt."""
    return status.policy_version.startswith(f"{attempt}.")


def _gang_room_at(gang: Iterable[PodView]) -> datetime | None:
    times = [pod.scheduled_at for pod in gang]
    return None if None in times else max((at for at in times if at), default=None)


def _room_at(observed: Observed, gang_room_at: datetime | None, *, has_rollout: bool) -> datetime | None:
    if gang_room_at is None or not has_rollout:
        return gang_room_at
    engines = (pod.scheduled_at for pod in observed.rollouts if pod.is_alive and pod.scheduled_at)
    first = min(engines, default=None)
    return max(gang_room_at, first) if first else None


def _runs(pod: PodView) -> bool:
    return pod.is_done or (pod.phase == "Running" and not pod.is_deleting)


def _first_step(
    observed: Observed,
    status: GRPOJobStatus,
    gang: Mapping[int, PodView],
    *,
    is_running: bool,
    is_missing: bool,
) -> FirstStep:
    """When the attempt made its first step, by the trainer's report and the status. Where a pod has failed or
    is gone, the attempt may have begun while no operator was there to see it."""
    known, progress = observed.job.status, _last_progress(observed, attempt=status.attempt)
    if known.attempt == status.attempt and _has_trained(known):
        return FirstStep.BEGUN
    if progress is not None and has_begun(progress):
        return FirstStep.BEGUN
    final = _final_progress(gang.get(0), uid=observed.job.uid, attempt=status.attempt)
    if final is not None:
        return FirstStep.BEGUN if has_begun(final) else FirstStep.NOT_BEGUN
    if not is_running:
        has_lost = has_all_trainers(status) and (is_missing or any(pod.has_failed for pod in gang.values()))
        may_have_run = status.phase is Phase.RUNNING or has_lost
        return FirstStep.UNKNOWN if may_have_run else FirstStep.NOT_BEGUN
    is_told = progress is not None and observed.remembered.report.is_answering
    return FirstStep.NOT_BEGUN if is_told else FirstStep.UNKNOWN


def _has_trained(status: GRPOJobStatus) -> bool:
    """Whether this attempt trained before. Its trainer no longer says so once it waits for a lost engine in
    its first step. Ready is True only while a trainer trains, and both conditions become False when an
    attempt ends. So Ready was True in this attempt if it changed after Running became True."""
    ready, running = condition(status, ConditionType.READY), condition(status, ConditionType.RUNNING)
    if ready is None or running is None or running.status != ConditionStatus.TRUE:
        return False
    return is_true(status, ConditionType.READY) or ready.last_transition_time > running.last_transition_time


def _last_progress(observed: Observed, *, attempt: int) -> Progress | None:
    progress = observed.remembered.report.progress
    return progress if progress and progress.attempt == attempt else None


def _new_progress(observed: Observed, first: PodView | None, *, attempt: int) -> Progress | None:
    """The newest progress: from the termination message of trainer pod 0, if it ended between two polls, else
    from the last poll.

    Each report is written once, and not when the status has a later one from another operator: two operators
    that both repeat what they heard last would undo each other's writes.
    """
    report = observed.remembered.report
    is_polled = report.is_news and report.problem is None
    polled = _last_progress(observed, attempt=attempt) if is_polled else None
    found = _final_progress(first, uid=observed.job.uid, attempt=attempt) or polled
    return None if found and _is_behind(found, observed.job.status) else found


def _final_progress(first: PodView | None, *, uid: str, attempt: int) -> Progress | None:
    """The progress that a trainer wrote down when it ended."""
    message = termination_message_of(first.termination) if first and first.termination else None
    progress = message.progress if message else None
    return progress if progress and (progress.job_uid, progress.attempt) == (uid, attempt) else None


def _is_behind(progress: Progress, status: GRPOJobStatus) -> bool:
    """Steps and checkpoints only grow within an attempt; the next one may go back to its checkpoint."""
    if not has_reported(status, attempt=progress.attempt):
        return False
    written = (status.step, _checkpoint_order(status.checkpoint_step))
    return (progress.step, _checkpoint_order(progress.checkpoint_step)) < written


def _checkpoint_order(step: int | None) -> int:
    return -1 if step is None else step
