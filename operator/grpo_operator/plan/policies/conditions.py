"""Policy: the conditions. Each says in one word and one sentence why it is as it is."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from grpo_api.contract.left_out import left_out_message
from grpo_api.contract.mismatch import STEPS_BELOW, why_unbounded
from grpo_api.contract.progress import EngineCounts, Progress
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.judge.clocks import WORKING_STATES
from grpo_api.v1alpha1.status import Condition, ConditionStatus, ConditionType
from grpo_operator.children.names import rollout_position
from grpo_operator.observe.observed import EngineView, Observed, PodView
from grpo_operator.plan.blockers import Blocker
from grpo_operator.plan.conditions import ConditionState, condition, is_true, with_condition
from grpo_operator.plan.draft import Draft, Stage
from grpo_operator.plan.hung_engines import hung_engines
from grpo_operator.plan.notes import notes_of, notes_to_write, with_notes, without_notes
from grpo_operator.plan.queue import is_for_queue
from grpo_operator.plan.termination import explain_termination

_UNREADABLE_REASONS = frozenset({Reason.SCHEMA_SKEW.value, Reason.REVISION_LOST.value})
"""Reasons that were written because the job could not be read, and that are over once it can be."""
_NO_PODS_REASONS = frozenset(
    {Reason.WAITING_FOR_EARLIER_ATTEMPT, Reason.WAITING_FOR_ROOM, Reason.WAITING_FOR_TRAINER}
)
"""Reasons for making no pods, which are over once pods are made."""


def write_conditions(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Every condition is written the first time a job is seen and whenever it changes."""
    running = _running(draft, observed)
    own_notes = notes_of(draft, observed)
    notes = notes_to_write(own_notes, observed)
    ready = _ready(draft, observed, running, own_notes=own_notes)
    message = with_notes(ready.message, notes)
    states = {
        ConditionType.RUNNING: running,
        ConditionType.ROLLOUT_READY: _rollout_ready(draft, observed),
        ConditionType.READY: replace(ready, message=message),
        ConditionType.RESTARTING: _restarting(draft, running),
        ConditionType.COMPLETE: _end(draft, ConditionType.COMPLETE),
        ConditionType.FAILED: _end(draft, ConditionType.FAILED),
        ConditionType.FINISHED: _end(draft, ConditionType.FINISHED),
        **_mismatch_high(draft),
        **_no_learning_signal(draft),
        **_environment_failing(draft),
        **_suspended(draft),
        **_stalled(draft),
    }
    status = draft.status
    for kind, state in states.items():
        status = with_condition(status, kind, state, generation=observed.job.generation, now=now)
    return replace(draft.with_status(conditions=status.conditions, notes=notes), notes=own_notes)


def _known_of_attempt(draft: Draft, observed: Observed, kind: ConditionType) -> Condition | None:
    """What a condition says already of the attempt that is planned."""
    is_same_attempt = observed.job.status.attempt == draft.status.attempt
    return condition(observed.job.status, kind) if is_same_attempt else None


def _not_met(why: ReasonMessage) -> ConditionState:
    return ConditionState(False, why.reason, why.message)


def _blocked_by(blocker: Blocker) -> ConditionState:
    return ConditionState(False, blocker.why.reason, blocker.message_with_pod)


def _running(draft: Draft, observed: Observed) -> ConditionState:
    if draft.stage is Stage.ENDED:
        return _not_met(_how_it_ended(draft))
    if draft.left_alone is not None:
        return _left_alone(draft, draft.left_alone, ConditionType.RUNNING)
    if draft.is_running:
        return ConditionState(True, Reason.TRAINER_RUNNING, "every trainer pod runs")
    return _not_running(draft, observed)


def _not_running(draft: Draft, observed: Observed) -> ConditionState:
    if draft.waits_for:
        return _not_met(draft.waits_for)
    if draft.early_end and draft.facts.missing:
        return _not_met(draft.early_end)
    if draft.facts.missing:
        creating = ConditionState(False, Reason.CREATING_PODS, "the trainer pods are being created")
        return _creating(draft, observed, ConditionType.RUNNING, creating)
    return _starting(draft)


def _left_alone(draft: Draft, why: ReasonMessage, kind: ConditionType) -> ConditionState:
    """The condition that a job that has started keeps while Ready says why."""
    known = condition(draft.status, kind)
    return ConditionState.of(known) if draft.status.attempt > 0 and known else _not_met(why)


def _starting(draft: Draft) -> ConditionState:
    for pod in draft.facts.gang.values():
        if pod.termination and not pod.is_done:
            why = explain_termination(pod.termination)
            return ConditionState(False, why.reason, f"trainer pod {pod.name} has ended: {why.message}")
    blocker = draft.facts.trainer_blocker
    starting = ConditionState(False, Reason.PODS_STARTING, "the trainer pods are starting")
    return _blocked_by(blocker) if blocker else starting


def _creating(
    draft: Draft, observed: Observed, kind: ConditionType, otherwise: ConditionState
) -> ConditionState:
    """Pods are missing. The condition keeps the refusal of the last try until another outcome is known: an
    operator that has just restarted does not remember the refusal."""
    refusal = observed.remembered.refusal
    if refusal:
        return _not_met(refusal.why)
    known = _known_of_attempt(draft, observed, kind)
    if known is None or known.status != ConditionStatus.FALSE:
        return otherwise
    return otherwise if known.reason in _NO_PODS_REASONS else ConditionState.of(known)


def _rollout_ready(draft: Draft, observed: Observed) -> ConditionState:
    if draft.stage is Stage.ENDED:
        return _given_back(observed)
    if draft.left_alone is not None:
        return _left_alone(draft, draft.left_alone, ConditionType.ROLLOUT_READY)
    if draft.without_pods and draft.waits_for:
        return _not_met(draft.waits_for)
    if not draft.snapshot.has_rollout:
        return _in_process(draft, observed)
    found = hung_engines(draft, observed)
    if found:
        more = f"; {len(found) - 1} more hang" if len(found) > 1 else ""
        return ConditionState(False, Reason.ENGINE_HUNG, found[0].message + more)
    return _admitted(draft, observed)


def _given_back(observed: Observed) -> ConditionState:
    """The engines of a job that has ended. `kubectl scale` of such a job succeeds and does nothing, as does
    any other change of its spec."""
    given_back = ConditionState(False, Reason.JOB_FINISHED, "the engines have been given back")
    status = observed.job.status
    known = condition(status, ConditionType.ROLLOUT_READY)
    if known is None or known.reason != Reason.JOB_FINISHED:
        return given_back
    if observed.job.generation == status.observed_generation:
        return ConditionState.of(known)
    message = "the spec was changed after the job had ended, and that changes nothing: apply another job"
    return replace(given_back, message=f"{given_back.message}; {message}")


def _admitted(draft: Draft, observed: Observed) -> ConditionState:
    """Engines in rollout pods."""
    if draft.waits_for and draft.stage is not Stage.ACTIVE:  # it has no rollout pods either
        return _not_met(draft.waits_for)
    rollout = draft.status.rollout
    if rollout.ready >= rollout.desired:
        return ConditionState(True, Reason.ENGINES_READY, f"all {rollout.desired} engines have been admitted")
    if draft.rollout_waits_for:
        return _not_met(draft.rollout_waits_for)
    engines = [pod for pod in observed.rollouts if pod.is_alive]
    starting = _engines_starting([engine for engine in engines if not engine.is_ready], draft, observed)
    is_missing = sum(pod.is_whole for pod in engines) < rollout.desired
    blocker = None if is_missing and observed.remembered.refusal else draft.facts.engine_blocker
    if blocker:
        return _blocked_by(blocker)
    if is_missing and draft.facts.gang_room_at is None:
        message = "the rollout pods are made once every trainer pod has a node"
        return ConditionState(False, Reason.WAITING_FOR_TRAINER, message)
    return _creating(draft, observed, ConditionType.ROLLOUT_READY, starting) if is_missing else starting


def _engines_starting(late: Sequence[EngineView], draft: Draft, observed: Observed) -> ConditionState:
    """How many engines have been admitted, with one of those that have not. What the trainer reports about it
    is the cause, which is not in the log of its pod. An operator that has just started has not heard it:
    until then the condition of this attempt stays as it is, as long as the same engine is late."""
    message = f"{draft.status.rollout.summary} engines have been admitted"
    progress = draft.facts.last_progress
    known = _known_of_attempt(draft, observed, ConditionType.ROLLOUT_READY)
    if progress is None and known and known.reason == Reason.ENGINES_STARTING:
        starts = (f"{message}: rollout pod {engine.name} " for engine in late)
        if any(known.message.startswith(start) for start in starts):
            return ConditionState.of(known)
    engines = progress.engines if progress else EngineCounts()
    reported = ((engine, engines.notes_on(pod.name)) for engine in late for pod in engine.pods)
    first, text = next(((engine, text) for engine, text in reported if text), (None, ""))
    if first is not None:
        message += f": rollout pod {first.name} is not ready, and the trainer says: {text}"
    elif late:
        message += f": rollout pod {late[0].name} is not ready, see its log{_why_made(late[0], draft)}"
    return ConditionState(False, Reason.ENGINES_STARTING, message)


def _why_made(pod: PodView, draft: Draft) -> str:
    """Why the pod before this one was replaced, where the last failure in the status says so."""
    failure = draft.status.last_failure
    if failure is None or failure.reason != Reason.ENGINE_HUNG:
        return ""
    replica, incarnation = pod.position
    is_its_successor = rollout_position(failure.pod) == (replica, incarnation - 1)
    return f"; it replaces {failure.pod}: {failure.message}" if is_its_successor else ""


def _in_process(draft: Draft, observed: Observed) -> ConditionState:
    """Engines in the trainer's processes: met from the first report in which all of them hold the newest
    weights until the attempt is over, as a rollout pod is ready from its first admission until it ends.
    That they lack the newest weights for a moment between two steps does not change the condition."""
    if not draft.is_running:
        return ConditionState(False, Reason.TRAINER_NOT_RUNNING, "the engines are in the trainer's processes")
    known = _known_of_attempt(draft, observed, ConditionType.ROLLOUT_READY)
    if known and known.reason == Reason.IN_PROCESS:
        return ConditionState.of(known)
    progress = draft.facts.last_progress
    engines = progress.engines if progress else EngineCounts()
    if engines.current >= max(engines.desired, 1):
        message = "the engines in the trainer's processes hold the newest weights"
        return ConditionState(True, Reason.IN_PROCESS, message)
    message = "the engines start in the trainer's processes"
    return ConditionState(False, Reason.ENGINES_STARTING, message)


def _ready(draft: Draft, observed: Observed, running: ConditionState, *, own_notes: str) -> ConditionState:
    """True while the trainer trains and after the job is complete. Without its notes."""
    if draft.stage is Stage.ENDED:
        ended = _how_it_ended(draft)
        return ConditionState(is_true(draft.status, ConditionType.COMPLETE), ended.reason, ended.message)
    if draft.left_alone is not None:
        return _not_met(draft.left_alone)
    if not running.is_met:
        return running
    report, new = observed.remembered.report, draft.facts.new_progress
    known = _known_of_attempt(draft, observed, ConditionType.READY)
    has_news = new is not None or (report.is_news and report.problem is not None)
    was_running = is_true(observed.job.status, ConditionType.RUNNING)
    if not has_news and known and known.reason not in _UNREADABLE_REASONS and was_running:
        message = without_notes(known.message, observed.job.status.notes or own_notes)
        return replace(ConditionState.of(known), message=message)
    return _not_met(report.problem) if report.problem else _at_work(new or draft.facts.last_progress)


def _at_work(progress: Progress | None) -> ConditionState:
    """The condition that follows from the trainer's report."""
    if progress is None:
        return ConditionState(False, Reason.TRAINER_STARTING, "the trainer has not reported yet")
    if progress.state in WORKING_STATES:
        # A message here is about a generation without progress or rewards that do not come, as with long
        # completions and slow functions in every step, or about engines that get no weights: the condition
        # stays True and only says so.
        return ConditionState(True, Reason.TRAINING, progress.message or "the trainer makes steps")
    return ConditionState(False, progress.state.value, progress.message or "the trainer is starting")


def _restarting(draft: Draft, running: ConditionState) -> ConditionState:
    known = condition(draft.status, ConditionType.RESTARTING)
    is_active = draft.stage is not Stage.ENDED and draft.without_pods is None
    if is_active and not running.is_met and known and known.status == ConditionStatus.TRUE:
        return ConditionState.of(known)
    return ConditionState(False, Reason.NOT_RESTARTING)


def _mismatch_high(draft: Draft) -> dict[ConditionType, ConditionState]:
    """What the newest report says; nothing before there was a mismatch. A new attempt changes nothing before
    it has computed as many steps as must be below the bound. Where the bound says nothing, that is said."""
    progress, kind = draft.facts.new_progress, ConditionType.MISMATCH_HIGH
    if progress is None:
        return {}
    snapshot = draft.known_snapshot
    spec = snapshot.spec if snapshot else None
    off = why_unbounded(spec.sampling, asynchronous=spec.asynchronous) if spec else None
    if off is not None:
        return {kind: ConditionState(False, Reason.LOGPROBS_NOT_COMPARED, off)}
    if progress.mismatch is not None:
        return {kind: ConditionState(True, Reason.LOGPROBS_DIFFER, progress.mismatch.message)}
    num_steps = progress.step - (progress.resumed_from_step or 0)
    if not is_true(draft.status, kind) or num_steps < STEPS_BELOW:
        return {}
    return {kind: ConditionState(False, Reason.LOGPROBS_AGREE, "trainer and engines agree again")}


def _no_learning_signal(draft: Draft) -> dict[ConditionType, ConditionState]:
    """What the newest report says; nothing before steps taught nothing. A new attempt changes nothing before
    it has made a step."""
    progress, kind = draft.facts.new_progress, ConditionType.NO_LEARNING_SIGNAL
    if progress is None:
        return {}
    found = progress.no_learning_signal
    if found is not None:
        return {kind: ConditionState(True, found.reason, found.message)}
    has_learned = progress.steps_without_signal is None and progress.step > (progress.resumed_from_step or 0)
    if not is_true(draft.status, kind) or not has_learned:
        return {}
    return {
        kind: ConditionState(False, Reason.LEARNING_AGAIN, f"step {progress.step} had something to learn")
    }


def _environment_failing(draft: Draft) -> dict[ConditionType, ConditionState]:
    """What the newest report says; nothing before an environment failed. A new attempt changes nothing before
    it has made a step."""
    progress, kind = draft.facts.new_progress, ConditionType.ENVIRONMENT_FAILING
    if progress is None:
        return {}
    if progress.left_out:
        return {kind: ConditionState(True, Reason.GROUPS_LEFT_OUT, left_out_message(progress.left_out))}
    if not is_true(draft.status, kind) or progress.step <= (progress.resumed_from_step or 0):
        return {}
    return {
        kind: ConditionState(False, Reason.ENVIRONMENTS_WORK, "a group of each environment is trained again")
    }


def _suspended(draft: Draft) -> dict[ConditionType, ConditionState]:
    """True once the pods of a suspended job are gone; nothing before a job was suspended."""
    kind, suspension = ConditionType.SUSPENDED, draft.status.suspension
    if suspension is None:
        return {}
    if draft.stage is Stage.LEFT_ALONE:
        why, is_by_person = draft.left_alone, suspension.until is None and not is_for_queue(draft.status)
        return {} if why is None or draft.status.attempt > 0 or is_by_person else {kind: _not_met(why)}
    if draft.stage is Stage.ENDED:
        return {kind: _not_met(_how_it_ended(draft))}
    if draft.stage is Stage.SUSPENDED and draft.waits_for:
        why = draft.waits_for
        return {kind: ConditionState(why.reason != Reason.SUSPENDING, why.reason, why.message)}
    queue = draft.status.queue
    if queue is not None and is_for_queue(draft.status):
        return {kind: ConditionState(False, Reason.ADMITTED, f"queue {queue.name} has admitted the job")}
    return {kind: ConditionState(False, Reason.UNSUSPENDED, "nothing suspends the job")}


def _stalled(draft: Draft) -> dict[ConditionType, ConditionState]:
    """True while the job goes no further unless a person does something: it has failed, or a rule has
    suspended it after a failure. kstatus, and every tool that has it, calls such an object Failed. Nothing
    before it was True."""
    kind, status, suspension = ConditionType.STALLED, draft.status, draft.status.suspension
    if is_true(status, ConditionType.FAILED):
        ended = _how_it_ended(draft)
        return {kind: ConditionState(True, ended.reason, ended.message)}
    if status.is_suspended and suspension and suspension.reason == Reason.SUSPENDED_BY_RULE:
        return {kind: ConditionState(True, suspension.reason, suspension.message)}
    if not is_true(status, kind):
        return {}
    return {kind: ConditionState(False, Reason.UNSUSPENDED, "no rule suspends the job")}


def _end(draft: Draft, kind: ConditionType) -> ConditionState:
    known = condition(draft.status, kind)
    if draft.stage is Stage.ENDED and known:
        return ConditionState.of(known)
    return ConditionState(False, Reason.IN_PROGRESS)


def _how_it_ended(draft: Draft) -> ReasonMessage:
    known = condition(draft.status, ConditionType.FINISHED)
    return ReasonMessage(known.reason, known.message) if known else ReasonMessage(Reason.FINISHED)
