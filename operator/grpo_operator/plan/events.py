"""The Events that people get, found from what a plan changes. Each is written once at most. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.v1alpha1.spec import ResumeLoad
from grpo_api.v1alpha1.status import Condition, ConditionStatus, ConditionType, GRPOJobStatus
from grpo_operator.children.child import Child
from grpo_operator.children.names import rollout_node, rollout_position
from grpo_operator.cluster.kinds import PODS
from grpo_operator.observe.observed import Observed, PodView
from grpo_operator.plan.conditions import condition, is_true
from grpo_operator.plan.draft import Draft, EventDraft, Stage
from grpo_operator.plan.facts import has_reported
from grpo_operator.plan.notes import why_not_deleted
from grpo_operator.plan.queue import is_for_queue, is_told_to_wait, why_taken
from grpo_operator.plan.termination import explain_termination

_SAY_WHAT_BLOCKS = (ConditionType.RUNNING, ConditionType.ROLLOUT_READY, ConditionType.READY)
_TRUE_WHILE_WRONG = (
    ConditionType.MISMATCH_HIGH,
    ConditionType.NO_LEARNING_SIGNAL,
    ConditionType.ENVIRONMENT_FAILING,
)
_SUSPENDED_AS_ASKED = frozenset(
    {Reason.SUSPENDED.value, Reason.QUEUED.value, Reason.EVICTED_FROM_QUEUE.value}
)
"""Reasons of a suspension that somebody has asked for, or that Kueue has decided: nothing is wrong. Every
other one blocks the job."""
_NO_REPORT = frozenset(
    {Reason.PROGRESS_UNREACHABLE.value, Reason.PROGRESS_UNREADABLE.value, Reason.SCHEMA_SKEW.value}
)
"""Reasons of Ready while the trainer's reports do not arrive."""


def events_of(draft: Draft, observed: Observed, now: datetime) -> tuple[EventDraft, ...]:
    """The difference between the status that was read and the one that will be written, as Events."""
    return (
        *_beginning(draft, observed),
        *_replacements(draft, observed),
        *_blockers(draft, observed),
        *_milestones(draft, observed, now),
        *_end(draft, observed),
    )


def _beginning(draft: Draft, observed: Observed) -> Iterator[EventDraft]:
    """The choice of the mode, each new attempt with its cause, and that its pods run."""
    old, new = observed.job.status, draft.status
    if old.attempt == 0 and new.attempt > 0:
        yield EventDraft(ReasonMessage(Reason.MODE_CHOSEN, f"{new.mode}, because {new.mode_reason}"), key="")
    restarting = condition(new, ConditionType.RESTARTING)
    if new.attempt > old.attempt > 0 and restarting and is_true(new, ConditionType.RESTARTING):
        why = ReasonMessage(Reason.RESTARTING, restarting.message)
        yield EventDraft(why, key=str(new.attempt), is_warning=True)
    yield from _suspensions(new, observed)
    running = condition(new, ConditionType.RUNNING)
    if new.given_back > old.given_back and running:
        why = ReasonMessage(Reason.WAITING_FOR_ROOM, running.message)
        yield EventDraft(why, key=str(new.given_back), is_warning=True)
    if old.highest_checkpoint_step is not None and new.highest_checkpoint_step is None:
        step = old.highest_checkpoint_step
        lost = f"the checkpoint of step {step} is accepted as lost, as the annotation says"
        why = ReasonMessage(Reason.LOSS_ACCEPTED, f"attempt {new.attempt} begins with what is there: {lost}")
        yield EventDraft(why, key=str(new.attempt), is_warning=True)
    report = draft.facts.new_progress
    if report is not None and report.set_aside and not has_reported(old, attempt=new.attempt):
        why = ReasonMessage(Reason.CHECKPOINT_SET_ASIDE, report.set_aside)
        yield EventDraft(why, key=str(new.attempt), is_warning=True)
    if _loaded_step(new) is not None and _loaded_step(old) is None:
        yield EventDraft(ReasonMessage(Reason.RESUMED, _resumed(new, observed)), key="")
    if is_true(new, ConditionType.RUNNING) and not is_true(old, ConditionType.RUNNING):
        why = ReasonMessage(Reason.STARTED, f"attempt {new.attempt}: every trainer pod runs")
        yield EventDraft(why, key=str(new.attempt))


def _suspensions(new: GRPOJobStatus, observed: Observed) -> Iterator[EventDraft]:
    """That the job is suspended as somebody asked or Kueue decided, and that it continues. A job that its
    queue admits at once is not said to have waited."""
    old, known = observed.job.status, new.suspension
    if known is None:
        return
    is_news = not old.is_suspended
    if known.reason == Reason.QUEUED:
        is_news = known != old.suspension and is_told_to_wait(observed)
    if new.is_suspended and is_news and known.reason in _SUSPENDED_AS_ASKED:
        yield EventDraft(ReasonMessage(known.reason, known.message), key=_time(known.since))
    if old.is_suspended and known.until is not None and not is_true(new, ConditionType.FINISHED):
        seconds = (known.until - known.since).total_seconds()
        why = ReasonMessage(Reason.UNSUSPENDED, f"the job was suspended for {seconds:.0f} s")
        if new.queue is not None and is_for_queue(new):
            message = f"queue {new.queue.name} has admitted the job after {seconds:.0f} s"
            why = ReasonMessage(Reason.ADMITTED, message)
        why = replace(why, message=f"attempt {new.attempt} follows: {why.message}")
        yield EventDraft(why, key=_time(known.until))


def _loaded_step(status: GRPOJobStatus) -> int | None:
    return status.resumed_from.step if status.resumed_from else None


def _resumed(status: GRPOJobStatus, observed: Observed) -> str:
    """Which checkpoint of another job the run has begun with, and what it took of it."""
    assert status.resumed_from is not None  # it has a step
    spec = observed.job.spec
    load = spec.resume_from.load if spec and spec.resume_from else ResumeLoad.CHECKPOINT
    what = "the checkpoint" if load is ResumeLoad.CHECKPOINT else "the weights of the checkpoint"
    job = f" of GRPOJob {status.resumed_from.job}" if status.resumed_from.job else ""
    where = f"which is at {status.resumed_from.source}"
    return f"the run began with {what} of step {status.resumed_from.step}{job}, {where}"


def _replacements(draft: Draft, observed: Observed) -> Iterator[EventDraft]:
    """Rollout pods that take the place of lost ones. More replicas are no replacement, and neither are pods
    that come again after all were given back or the job was suspended."""
    if draft.status.given_back and draft.status.waiting_for_room:
        return
    suspension = draft.status.suspension
    suspended_until = suspension.until if suspension else None
    desired_before = observed.job.status.rollout.desired
    for child in draft.create:
        position = rollout_position(child.name) if child.kind == PODS else None
        if position is None or position[1] == 0 or position[0] >= desired_before or rollout_node(child.name):
            continue
        before = [pod for pod in observed.rollouts if pod.position[0] == position[0]]
        lost = max(before, key=lambda pod: pod.position, default=None)
        if lost and lost.created_at and suspended_until and lost.created_at < suspended_until:
            continue
        taken = why_taken(draft, observed, position[0])
        cause = "it is gone: it was deleted or its node was removed"
        if taken:
            cause = f"Kueue had taken its quota and has given it back: {taken}"
        elif lost is not None:
            cause = draft.given_up_engines.get(lost.uid) or _what_happened_to(lost)
        name = lost.name if lost else f"of replica {position[0]}"
        message = f"rollout pod {name} is replaced by {child.name}: {cause}"
        why = ReasonMessage(Reason.ENGINE_REPLACED, message)
        yield EventDraft(why, key=_replacement_key(child, lost), is_warning=True)


def _replacement_key(child: Child, lost: PodView | None) -> str:
    """Each replacement gets an Event. But pods that are refused one after the other, for the same reason, get
    one for a replica."""
    if lost is None or not lost.has_never_run:
        return child.name
    why = lost.disruption or lost.start_problem
    return f"{lost.position[0]}/{why.reason if why else ''}"


def _what_happened_to(lost: PodView) -> str:
    if lost.disruption:
        return lost.disruption.message
    if lost.termination:
        return explain_termination(lost.termination).message
    return lost.start_problem.message if lost.start_problem else "its node gave it up"


def _blockers(draft: Draft, observed: Observed) -> Iterator[EventDraft]:
    """What blocks the job or is wrong with it and was not before. That a job has ended is told at its end."""
    if draft.stage is Stage.ENDED:
        return
    before = _what_is_wrong(observed.job.status)
    for (reason, key), message in _what_is_wrong(draft.status).items():
        if (reason, key) not in before:
            yield EventDraft(ReasonMessage(reason, message), key=key, is_warning=True)
    asked = draft.lost_node
    known, new = (condition(status, ConditionType.RUNNING) for status in (observed.job.status, draft.status))
    if asked and new and new.message == asked.why.message and (known is None or known.message != new.message):
        yield asked


def _what_is_wrong(status: GRPOJobStatus) -> Mapping[tuple[str, str], str]:
    """What a status says is wrong now: reason and key of the Event with its message.

    The key has the time since which a condition is not as it should be. What comes back after it was over
    gets another Event. What only changes its numbers, its pod, or for a while its reason gets none.
    """
    wrong = {}
    failure = status.last_failure
    # an engine that hangs is replaced, which has an Event
    if failure is not None and failure.attempt == status.attempt and failure.reason != Reason.ENGINE_HUNG:
        message = f"{failure.role} pod {failure.pod}: {failure.message}" if failure.pod else failure.message
        if found := _saying(status, failure.reason):
            key = f"{failure.attempt}/{failure.role}/{_time(found.last_transition_time)}"
            wrong[failure.reason, key] = message
    suspension = status.suspension if status.is_suspended else None
    if suspension and suspension.reason not in _SUSPENDED_AS_ASKED:
        wrong[suspension.reason, _time(suspension.since)] = suspension.message
    # pods that a job which is not suspended waits for: it has failed in nothing
    if suspension is None and (found := _saying(status, Reason.QUEUE_UNAVAILABLE)):
        key = f"{status.attempt}//{_time(found.last_transition_time)}"
        wrong.setdefault((found.reason, key), found.message)
    ready = condition(status, ConditionType.READY)
    if ready and ready.reason in _NO_REPORT and is_true(status, ConditionType.RUNNING):
        wrong[ready.reason, _time(ready.last_transition_time)] = ready.message
    for kind in _TRUE_WHILE_WRONG:
        found = condition(status, kind)
        if found and found.status == ConditionStatus.TRUE:
            wrong[found.reason, _time(found.last_transition_time)] = found.message
    return wrong


def _saying(status: GRPOJobStatus, reason: str) -> Condition | None:
    """The first condition that is False for this reason, of those that say what blocks a job."""
    each = (condition(status, kind) for kind in _SAY_WHAT_BLOCKS)
    return next((c for c in each if c and (c.status, c.reason) == (ConditionStatus.FALSE, reason)), None)


def _milestones(draft: Draft, observed: Observed, now: datetime) -> Iterator[EventDraft]:
    """The first step, checkpoints, evaluations that are better than all before, and another number of
    engines. A job may save every second: of the checkpoints of one minute one is told."""
    old, new = observed.job.status, draft.status
    if old.highest_step == 0 and new.highest_step > 0:
        message = f"step {new.step} of {new.total_steps or '?'} is the first that the job has finished"
        yield EventDraft(ReasonMessage(Reason.FIRST_STEP, message), key="")
    if new.checkpoint_step is not None and new.checkpoint_step > (old.checkpoint_step or 0):
        why = ReasonMessage(Reason.CHECKPOINT_SAVED, f"the checkpoint of step {new.checkpoint_step} is saved")
        yield EventDraft(why, key=f"{now:%Y-%m-%dT%H:%M}")
    progress = draft.facts.new_progress
    best = progress.best_evaluation if progress is not None else None
    if best is not None and best.step == new.best_step and new.best_step != old.best_step:
        message = f"the evaluation after step {best.step} is the best so far: reward {best.reward:.4g}"
        yield EventDraft(ReasonMessage(Reason.BEST_EVALUATION, message), key=str(best.step))
    before, after = old.rollout.desired, new.rollout.desired
    if before != after and before and after:
        message = f"the job is scaled from {before} to {after} engines"
        yield EventDraft(ReasonMessage(Reason.SCALED, message), key=str(observed.job.generation))


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _end(draft: Draft, observed: Observed) -> Iterator[EventDraft]:
    found = condition(draft.status, ConditionType.FINISHED)
    not_deleted = why_not_deleted(observed.job, draft.status)
    if draft.stage is Stage.ENDED and not_deleted and not_deleted not in observed.job.status.notes:
        yield EventDraft(ReasonMessage(Reason.NOT_DELETED, not_deleted), key="", is_warning=True)
    if not is_true(draft.status, ConditionType.FINISHED) or found is None:
        return
    if is_true(observed.job.status, ConditionType.FINISHED):
        return
    if is_true(draft.status, ConditionType.COMPLETE):
        yield EventDraft(ReasonMessage(Reason.COMPLETED, found.message), key="")
    else:
        why = ReasonMessage(Reason.FAILED, f"{found.reason}: {found.message}")
        yield EventDraft(why, key="", is_warning=True)
