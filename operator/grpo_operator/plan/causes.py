"""What is wrong with an attempt, as causes: trainer pods that failed, are gone, run another build of the
image or make no progress, and engines whose error no retry can mend. Pure.

Which cause is the first, and what follows from it, is in `grpo_api.judge`.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from grpo_api.contract.endpoints import TRAINER_CONTAINER
from grpo_api.contract.environment import Role
from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.judge.attempts import acting_rule, lowered_budget
from grpo_api.judge.causes import Cause, Precedence, cause_of, certain, disruption, first_cause
from grpo_api.judge.clocks import has_begun, stalled
from grpo_api.judge.engines import NO_ENGINE_SECONDS, EngineAbsence, errors_end_job
from grpo_api.v1alpha1.spec import FailedRole, FailureAction, FailureRule
from grpo_api.v1alpha1.status import GRPOJobStatus
from grpo_operator.observe.image_build import other_build
from grpo_operator.observe.observed import ContainerTermination, EngineView, Observed, PodView
from grpo_operator.plan.blockers import is_unready_since
from grpo_operator.plan.draft import Draft, Stage
from grpo_operator.plan.facts import AttemptFacts, FirstStep, has_reported
from grpo_operator.plan.last_failure import PodRef, last_failure, with_advice
from grpo_operator.plan.queue import may_have_engine
from grpo_operator.plan.termination import end_of
from grpo_operator.plan.without_progress import has_worked

_SHORTEST_WAIT_SECONDS = 5.0
_Ends = list[tuple[EngineView, ContainerTermination]]
"""Engines in rollout pods that have ended, with how. One that ends no attempt is shown in conditions and
started again."""


def causes_of(draft: Draft, observed: Observed) -> list[Cause[PodRef]]:
    """Everything that is wrong with the current attempt."""
    facts = draft.facts
    if facts.first and facts.first.is_done:
        return []
    of_engines = _engine_errors(draft, observed)
    if draft.stage is not Stage.ACTIVE:  # the operator itself deletes the trainer pods
        return of_engines
    missing = facts.missing if facts.was_complete else ()
    # pods of a trainer that has reported have met: one of another build is replaced with the next attempt
    have_met = has_reported(draft.status, attempt=facts.attempt)
    return [
        *of_engines,
        *_engines_that_a_rule_is_about(draft, observed),
        *_failed_pods(draft),
        *_vanished_pods(draft.snapshot.names.trainer(attempt=facts.attempt, index=i) for i in missing),
        *([] if have_met else _other_builds(facts.gang.values(), draft.status)),
        *_stalled_trainer(draft, observed),
    ]


def rule_about(cause: Cause[PodRef], draft: Draft) -> FailureRule | None:
    """The rule of failurePolicy that decides what follows from a cause; None where the exit code does. An
    engine that would only be started again is the subject of rules with the role rollout alone."""
    role, rules = cause.ended.role, draft.snapshot.spec.failure_policy.failure_rules or ()
    if role is Role.ROLLOUT and cause.exit_code != ExitCode.USER_ERROR:
        rules = _of_rollout(rules)
    return acting_rule(rules, cause, role=role.value if role else "", attempt=draft.facts.attempt)


def advised(cause: Cause[PodRef], draft: Draft) -> Cause[PodRef]:
    """The cause with what a person can do in its message."""
    return replace(cause, why=with_advice(cause.why, draft.status, snapshot=draft.snapshot))


def with_failure(draft: Draft, cause: Cause[PodRef]) -> Draft:
    """The draft with the cause as its last failure, and with less memory for the next attempt where the cause
    is that there was not enough."""
    failure = last_failure(
        cause.why, attempt=draft.status.attempt, pod=cause.ended, exit_code=cause.exit_code
    )
    draft = draft.with_status(last_failure=failure)
    if not cause.consequence.lowers_budget:
        return draft
    budget = lowered_budget(draft.snapshot.config.micro_batch_tokens)
    return draft.with_status(micro_batch_tokens=budget)


def with_failure_so_far(draft: Draft, observed: Observed) -> Draft:
    """The draft with what is wrong with the attempt now as its last failure; the same where nothing is. It is
    for an attempt that ends for another reason: nothing follows from the failure."""
    cause = first_cause(causes_of(draft, observed))
    return with_failure(draft, advised(cause, draft)) if cause else draft


def wake_for_causes(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Plan again when something may be wrong of which no watch event or report says anything: a trainer that
    makes no progress, engines in error of which none comes back."""
    return _wake_when_stalled(_wake_when_no_engine(draft, observed, now), observed)


def _failed_pods(draft: Draft) -> list[Cause[PodRef]]:
    """One cause for each trainer pod that has failed."""
    worked, pods = has_worked(draft.status), draft.facts.gang.values()
    return [_of_pod(pod, has_worked=worked) for pod in pods if pod.has_failed and not _is_going(pod, draft)]


def _is_going(pod: PodView, draft: Draft) -> bool:
    """Whether it is on its way out because the job gave it back: another operator may have written that the
    wait is over before the watch of this one shows the end of the pod."""
    return pod.is_deleting and pod.given_back < draft.status.given_back


def _of_pod(pod: PodView, *, has_worked: bool) -> Cause[PodRef]:
    own = None
    if pod.termination:
        own = _of_termination(pod, pod.termination, role=Role.TRAINER, has_worked=has_worked)
    # A container that names its own cause counts even when its pod is being deleted by now.
    if own and own.precedence is Precedence.CERTAIN:
        return own
    if pod.disruption:
        why = ReasonMessage(pod.disruption.reason, f"trainer pod {pod.name}: {pod.disruption.message}")
        # one that used more storage than its own limit; its exit code says nothing, as its node stopped it
        kind = certain if pod.has_exceeded_own_limit else disruption
        return kind(
            why,
            _ref(pod, Role.TRAINER, pod.termination),
            exit_code=pod.termination.exit_code if pod.termination else None,
            ended_at=pod.termination.finished_at if pod.termination else None,
        )
    return own or _failed_without_termination(pod)


def _failed_without_termination(pod: PodView) -> Cause[PodRef]:
    """The node gave the pod up before or while it started its container."""
    problem = pod.start_problem or ReasonMessage(Reason.POD_FAILED, "its node reported no reason")
    why = ReasonMessage(problem.reason, f"trainer pod {pod.name} failed without running: {problem.message}")
    return disruption(why, _ref(pod, Role.TRAINER))


def _of_termination(
    pod: PodView, termination: ContainerTermination, *, role: Role, has_worked: bool
) -> Cause[PodRef]:
    """Why the container of a pod ended. `has_worked` as in `exit_policy`."""
    end = end_of(termination)
    if end.exit_code == ExitCode.TERMINATED:
        message = (
            f"trainer pod {pod.name} was asked to stop although it was neither deleted nor evicted, most "
            f"likely by its liveness probe: {end.message}"
        )
        end = end.model_copy(update={"message": message})
    ref = _ref(pod, role, termination)
    return cause_of(end, ref, has_worked=has_worked, ended_at=termination.finished_at)


def _ref(pod: PodView, role: Role, termination: ContainerTermination | None = None) -> PodRef:
    return PodRef(role, pod.name, pod.node, termination.container if termination else "")


def _vanished_pods(names: Iterable[str]) -> list[Cause[PodRef]]:
    """Trainer pods that existed, and of which nothing is left."""
    gone = "is gone: it was deleted or its node was removed"
    return [
        disruption(
            ReasonMessage(Reason.POD_DELETED, f"trainer pod {name} {gone}"), PodRef(Role.TRAINER, name)
        )
        for name in names
    ]


def _other_builds(pods: Iterable[PodView], status: GRPOJobStatus) -> list[Cause[PodRef]]:
    """Trainer pods that run another build of the image than the run."""
    found = ((pod, other_build(pod, status)) for pod in pods)
    return [
        disruption(ReasonMessage(Reason.IMAGE_CHANGED, f"trainer {why}"), _ref(pod, Role.TRAINER))
        for pod, why in found
        if why is not None
    ]


def _stalled_trainer(draft: Draft, observed: Observed) -> list[Cause[PodRef]]:
    """A trainer whose answers have stayed the same for `stallTimeoutSeconds`. What counts is its heartbeat,
    which rises while completions are sampled only with samples that are finished.

    A trainer that does not answer is not stalled: it may well work where this operator cannot reach it. One
    that still loads models is not stalled either: startupDeadlineSeconds limits that.
    """
    liveness, progress = observed.remembered.report.liveness, draft.facts.last_progress
    if liveness is None or progress is None or not has_begun(progress) or not draft.is_running:
        return []
    quiet_seconds = liveness.quiet_seconds
    limit = draft.snapshot.spec.stall_timeout_seconds
    if quiet_seconds < limit:
        return []
    first = draft.facts.gang[0]
    why = stalled(progress, seconds=quiet_seconds, limit_seconds=limit, last_sign_at=liveness.changed_at)
    ref = PodRef(Role.TRAINER, first.name, first.node, TRAINER_CONTAINER)
    return [certain(why, ref)]


def _wake_when_stalled(draft: Draft, observed: Observed) -> Draft:
    """Plan again at the time from which the trainer counts as stalled unless it makes progress."""
    liveness = observed.remembered.report.liveness
    if liveness is None or not draft.is_running:
        return draft
    left = draft.snapshot.spec.stall_timeout_seconds - liveness.quiet_seconds
    return draft.waking_after(max(_SHORTEST_WAIT_SECONDS, left))


def _engine_errors(draft: Draft, observed: Observed) -> list[Cause[PodRef]]:
    """Engines whose error ends the attempt."""
    errors = _errors_of_engines(draft, observed)
    worked, report = has_worked(draft.status), observed.remembered.report
    is_before_first_step = draft.facts.first_step is FirstStep.NOT_BEGUN and not worked
    if not errors_end_job(
        num_errors=len(errors),
        has_others=not _is_every_engine(errors, draft, observed),
        is_before_first_step=is_before_first_step,
        absence=report.absence if report.is_answering else EngineAbsence(),
    ):
        return []
    causes = [_of_termination(pod, end, role=Role.ROLLOUT, has_worked=worked) for pod, end in errors]
    return causes if is_before_first_step else [_without_engines(cause, observed) for cause in causes]


def _wake_when_no_engine(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Plan again when engines in error may end the job: reports that say the same as before cause no plan.
    Another engine that ends causes one by itself."""
    errors = _errors_of_engines(draft, observed)
    if not draft.is_running or not errors:
        return draft
    since = observed.remembered.report.absence.since
    is_known = has_worked(draft.status) or draft.facts.first_step is FirstStep.BEGUN
    if is_known and (since is None or not _is_every_engine(errors, draft, observed)):
        return draft
    left = 0.0 if since is None else NO_ENGINE_SECONDS - (now.timestamp() - since)
    return draft.waking_after(max(_SHORTEST_WAIT_SECONDS, left))


def _errors_of_engines(draft: Draft, observed: Observed) -> _Ends:
    """Rollout pods that are not ready because their engine ended with 40 in the current attempt, but for
    those that a rule of failurePolicy ignores."""
    return [
        (pod, end)
        for pod, end in _ended_engines(draft.facts, observed)
        if end.exit_code == ExitCode.USER_ERROR and _action_on(draft, pod, end) is not FailureAction.IGNORE
    ]


def _engines_that_a_rule_is_about(draft: Draft, observed: Observed) -> list[Cause[PodRef]]:
    """Engines that have ended, of which a rule of failurePolicy with the role rollout says that they end the
    attempt. Any other engine is only started again. Nothing else is waited for, as no trainer pod has
    failed."""
    return [
        replace(_of_engine(draft, *each), precedence=Precedence.CERTAIN)
        for each in _ended_engines(draft.facts, observed)
        if not any(pod.disruption for pod in each[0].pods)
        and _action_on(draft, *each) not in (None, FailureAction.IGNORE)
    ]


def _action_on(draft: Draft, pod: EngineView, termination: ContainerTermination) -> FailureAction | None:
    rules = draft.snapshot.spec.failure_policy.failure_rules or ()
    cause = _of_engine(draft, pod, termination)
    rule = acting_rule(_of_rollout(rules), cause, role=FailedRole.ROLLOUT.value, attempt=draft.facts.attempt)
    return rule.action if rule else None


def _of_rollout(rules: tuple[FailureRule, ...]) -> tuple[FailureRule, ...]:
    return tuple(rule for rule in rules if rule.role is FailedRole.ROLLOUT)


def _of_engine(draft: Draft, pod: EngineView, termination: ContainerTermination) -> Cause[PodRef]:
    return _of_termination(pod, termination, role=Role.ROLLOUT, has_worked=has_worked(draft.status))


def _ended_engines(facts: AttemptFacts, observed: Observed) -> _Ends:
    """Rollout pods that are not ready because their engine ended in the current attempt. Of an engine of
    several pods no kubelet restarts any: it is looked at until it is replaced."""
    found = []
    for pod in observed.rollouts:
        termination = pod.termination or pod.last_termination
        if termination is None:
            continue
        is_out = pod.is_alive and not pod.is_ready and is_unready_since(pod, termination)
        if pod.has_several_pods:
            is_out = pod.is_over and not pod.is_deleting
        if is_out and _is_of_attempt(termination, facts):
            found.append((pod, termination))
    return found


def _is_of_attempt(termination: ContainerTermination, facts: AttemptFacts) -> bool:
    """Engines outlive attempts. What ended one before this attempt had a pod says nothing about it."""
    if facts.attempt == 1:
        return True
    if termination.finished_at is None or facts.first_pod_at is None:
        return False
    return termination.finished_at >= facts.first_pod_at


def _is_every_engine(errors: _Ends, draft: Draft, observed: Observed) -> bool:
    """Whether no engine is left that may come back: all replicas have pods, all of them in `errors`."""
    in_error = {pod.uid: pod.position[0] for pod, _ in errors}
    replicas = range(draft.snapshot.num_engines)
    with_quota = {replica for replica in replicas if may_have_engine(draft, observed, replica)}
    is_complete = with_quota <= set(in_error.values())
    return is_complete and all(pod.uid in in_error for pod in observed.rollouts if pod.is_alive)


def _without_engines(cause: Cause[PodRef], observed: Observed) -> Cause[PodRef]:
    seconds = observed.remembered.report.absence.seconds
    message = f"{cause.why.message} (and no engine has held the newest weights for {seconds:.0f} s)"
    return replace(cause, why=ReasonMessage(cause.why.reason, message))
