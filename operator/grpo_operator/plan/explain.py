"""Policy: the conditions. Each says in one word and one sentence why it is as it is."""

from dataclasses import dataclass, replace
from datetime import datetime

from grpo_api.contract.progress import EngineCounts, Progress
from grpo_api.contract.retries import WORKING_STATES
from grpo_api.v1alpha1.status import Condition, ConditionStatus, ConditionType
from grpo_operator.observed import Observed
from grpo_operator.plan.causes import describe, is_done
from grpo_operator.plan.conditions import condition, is_true, with_condition
from grpo_operator.plan.counts import is_running
from grpo_operator.plan.draft import Draft, Stage
from grpo_operator.plan.gang_view import current_gang, missing_indices
from grpo_operator.plan.hindrance import Hindrance, engine_hindrance, trainer_hindrance
from grpo_operator.plan.progress import last_report, newest_progress
from grpo_operator.plan.rollout import is_alive
from grpo_operator.plan.validate import SCHEMA_SKEW


@dataclass(frozen=True)
class Finding:
    """What a condition says."""

    is_met: bool
    reason: str
    message: str = ""


_IN_PROCESS = "InProcess"
_WAITING = "WaitingForEarlierAttempt"
_CREATING_TRAINERS = Finding(False, "CreatingPods", "the trainer pods are being created")


def explain(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Every condition is written the first time a job is seen and whenever it changes."""
    running = _running(draft, observed)
    findings = {
        ConditionType.RUNNING: running,
        ConditionType.ROLLOUT_READY: _rollout_ready(draft, observed),
        ConditionType.READY: _with_spec_problem(_ready(draft, observed, running), draft, observed),
        ConditionType.RESTARTING: _restarting(draft, running),
        ConditionType.COMPLETE: _end(draft, ConditionType.COMPLETE),
        ConditionType.FAILED: _end(draft, ConditionType.FAILED),
        ConditionType.FINISHED: _end(draft, ConditionType.FINISHED),
    }
    status = draft.status
    for kind, found in findings.items():
        status = with_condition(
            status,
            kind,
            is_met=found.is_met,
            reason=found.reason,
            message=found.message,
            generation=observed.job.generation,
            now=now,
        )
    return draft.with_status(conditions=status.conditions)


def _running(draft: Draft, observed: Observed) -> Finding:
    if draft.stage is Stage.FINISHED:
        return Finding(False, *_how_it_ended(draft))
    if draft.run is None:
        return _not_ours_to_tell(draft, ConditionType.RUNNING)
    if is_running(draft, observed):
        return Finding(True, "TrainerRunning", "every trainer pod runs")
    if draft.waits_for:
        return Finding(False, _WAITING, draft.waits_for)
    if missing_indices(observed, draft.run, attempt=draft.status.attempt):
        return _creating(draft, observed, ConditionType.RUNNING, _CREATING_TRAINERS)
    return _starting(draft, observed)


def _not_ours_to_tell(draft: Draft, kind: ConditionType) -> Finding:
    """Nothing is known of a run that cannot be read: what was said of its pods stands, Ready says why."""
    known = condition(draft.status, kind)
    if draft.blocked is None:
        return Finding(False, "NotStarted")
    if draft.status.attempt > 0 and known:
        return _again(known)
    return Finding(False, draft.blocked.reason, draft.blocked.message)


def _starting(draft: Draft, observed: Observed) -> Finding:
    gang = current_gang(observed, attempt=draft.status.attempt).values()
    for pod in gang:
        if pod.ending and not is_done(pod):
            reason, message = describe(pod.ending)
            return Finding(False, reason, f"trainer pod {pod.name} has ended: {message}")
    hindrance = trainer_hindrance(observed, attempt=draft.status.attempt)
    return (
        _hindered(hindrance) if hindrance else Finding(False, "PodsStarting", "the trainer pods are starting")
    )


def _creating(draft: Draft, observed: Observed, kind: ConditionType, otherwise: Finding) -> Finding:
    """Pods are missing. A refusal of the last try stays until there is news: an operator that has just
    been restarted does not know it any more."""
    if observed.refusal:
        return Finding(False, observed.refusal.reason, observed.refusal.message)
    known = condition(observed.job.status, kind)
    is_same_attempt = observed.job.status.attempt == draft.status.attempt
    if known is None or known.status != ConditionStatus.FALSE or known.reason == _WAITING:
        return otherwise
    return _again(known) if is_same_attempt else otherwise


def _rollout_ready(draft: Draft, observed: Observed) -> Finding:
    if draft.stage is Stage.FINISHED:
        return Finding(False, "JobFinished", "the engines have been given back")
    if draft.run is None:
        return _not_ours_to_tell(draft, ConditionType.ROLLOUT_READY)
    return _admitted(draft, observed) if draft.run.has_rollout else _in_process(draft, observed)


def _admitted(draft: Draft, observed: Observed) -> Finding:
    """Engines in rollout pods."""
    rollout = draft.status.rollout
    if rollout.ready >= rollout.desired:
        return Finding(True, "EnginesReady", f"all {rollout.desired} engines have been admitted")
    engines = [pod for pod in observed.rollouts if is_alive(pod)]
    late = next(
        (f": rollout pod {pod.name} is not ready, see its log" for pod in engines if not pod.is_ready), ""
    )
    starting = Finding(False, "EnginesStarting", f"{rollout.summary} engines have been admitted{late}")
    is_missing = len(engines) < rollout.desired
    hindrance = None if is_missing and observed.refusal else engine_hindrance(observed)
    if hindrance:
        return _hindered(hindrance)
    return _creating(draft, observed, ConditionType.ROLLOUT_READY, starting) if is_missing else starting


def _hindered(hindrance: Hindrance) -> Finding:
    return Finding(False, hindrance.trouble.reason, hindrance.sentence)


def _in_process(draft: Draft, observed: Observed) -> Finding:
    """Engines in the trainer's processes: met from the first report in which all of them hold the newest
    weights until the attempt is over, as a rollout pod is ready from its first admission until it ends.
    Between two steps they are behind for a moment, and nobody wants to hear of that."""
    if not is_running(draft, observed):
        return Finding(False, "TrainerNotRunning", "the engines are in the trainer's processes")
    told = last_report(observed, attempt=draft.status.attempt)
    known = condition(observed.job.status, ConditionType.ROLLOUT_READY)
    is_same_attempt = observed.job.status.attempt == draft.status.attempt
    if is_same_attempt and known and known.reason == _IN_PROCESS:
        return _again(known)
    engines = told.engines if told else EngineCounts()
    if engines.current >= max(engines.desired, 1):
        return Finding(True, _IN_PROCESS, "the engines in the trainer's processes hold the newest weights")
    return Finding(False, "EnginesStarting", "the engines start in the trainer's processes")


def _ready(draft: Draft, observed: Observed, running: Finding) -> Finding:
    """True while the job does its work and after it has done it."""
    if draft.stage is Stage.FINISHED:
        return Finding(is_true(draft.status, ConditionType.COMPLETE), *_how_it_ended(draft))
    if draft.blocked or not running.is_met:
        return Finding(False, draft.blocked.reason, draft.blocked.message) if draft.blocked else running
    told = newest_progress(observed, attempt=draft.status.attempt)
    known = condition(observed.job.status, ConditionType.READY)
    was_running = is_true(observed.job.status, ConditionType.RUNNING)
    is_news = told or (observed.is_news and observed.complaint)
    is_same_attempt = was_running and observed.job.status.attempt == draft.status.attempt
    # That another release could not read the job is over now that this one can.
    if not is_news and known and known.reason != SCHEMA_SKEW and is_same_attempt:
        return _again(known)
    if observed.complaint:
        return Finding(False, observed.complaint.reason, observed.complaint.message)
    return _work(told or last_report(observed, attempt=draft.status.attempt))


def _with_spec_problem(ready: Finding, draft: Draft, observed: Observed) -> Finding:
    """A run goes on with its frozen spec when the live one cannot be read, which must not go unsaid."""
    if draft.run is None or draft.stage is Stage.FINISHED or not observed.job.problem:
        return ready
    unread = f"changes to the spec are not followed, for it cannot be read: {observed.job.problem}"
    return ready if unread in ready.message else replace(ready, message=f"{ready.message}; {unread}")


def _work(told: Progress | None) -> Finding:
    """What the trainer says it does."""
    if told is None:
        return Finding(False, "TrainerStarting", "the trainer has not reported yet")
    if told.state in WORKING_STATES:
        return Finding(True, "Training", "the trainer makes steps")
    return Finding(False, told.state.value, told.message or "the trainer is starting")


def _restarting(draft: Draft, running: Finding) -> Finding:
    known = condition(draft.status, ConditionType.RESTARTING)
    if draft.stage is Stage.ACTIVE and not running.is_met and known and known.status == ConditionStatus.TRUE:
        return _again(known)
    return Finding(False, "NotRestarting")


def _end(draft: Draft, kind: ConditionType) -> Finding:
    known = condition(draft.status, kind)
    if draft.stage is Stage.FINISHED and known:
        return _again(known)
    return Finding(False, "InProgress")


def _how_it_ended(draft: Draft) -> tuple[str, str]:
    known = condition(draft.status, ConditionType.FINISHED)
    return (known.reason, known.message) if known else ("Finished", "")


def _again(known: Condition) -> Finding:
    return Finding(known.status == ConditionStatus.TRUE, known.reason, known.message)
