"""Engines in rollout pods that say that no retry can mend their error (exit code 40), as causes. Pure.

When they end a job is decided in `grpo_api.judge.engines`. One that ends nothing is shown and started again.
"""

from dataclasses import replace
from datetime import datetime

from grpo_api.contract.environment import Role
from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.judge.causes import Cause
from grpo_api.judge.engines import NO_ENGINE_SECONDS, EngineAbsence, errors_end_job
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.observe.observed import ContainerTermination, EngineView, Observed
from grpo_operator.plan.blockers import is_unready_since
from grpo_operator.plan.causes import cause_from_termination
from grpo_operator.plan.draft import Draft
from grpo_operator.plan.facts import AttemptFacts, FirstStep
from grpo_operator.plan.last_failure import Place
from grpo_operator.plan.without_progress import has_worked

_SHORTEST_WAIT_SECONDS = 5.0


def engine_causes(draft: Draft, observed: Observed, snapshot: JobSnapshot) -> list[Cause[Place]]:
    """Engines whose error ends the attempt."""
    errors = _user_errors(draft.facts, observed)
    worked, report = has_worked(draft.status), observed.remembered.report
    is_before_first_step = draft.facts.first_step is FirstStep.NOT_BEGUN and not worked
    if not errors_end_job(
        num_errors=len(errors),
        has_others=not _is_every_engine(errors, observed, snapshot),
        is_before_first_step=is_before_first_step,
        absence=report.absence if report.is_answering else EngineAbsence(),
    ):
        return []
    causes = [cause_from_termination(pod, end, role=Role.ROLLOUT, has_worked=worked) for pod, end in errors]
    return causes if is_before_first_step else [_without_engines(cause, observed) for cause in causes]


def wake_when_no_engine(draft: Draft, observed: Observed, snapshot: JobSnapshot, now: datetime) -> Draft:
    """Plan again when such an engine may end the job: reports that tell the same as before cause no plan.
    Another engine that ends causes one by itself."""
    errors = _user_errors(draft.facts, observed)
    if not draft.is_running or not errors:
        return draft
    since = observed.remembered.report.absence.since
    is_known = has_worked(draft.status) or draft.facts.first_step is FirstStep.BEGUN
    if is_known and (since is None or not _is_every_engine(errors, observed, snapshot)):
        return draft
    left = 0.0 if since is None else NO_ENGINE_SECONDS - (now.timestamp() - since)
    return draft.waking_after(max(_SHORTEST_WAIT_SECONDS, left))


_Errors = list[tuple[EngineView, ContainerTermination]]


def _is_every_engine(errors: _Errors, observed: Observed, snapshot: JobSnapshot) -> bool:
    """Whether no engine is left that may come back: all replicas have pods, all of them in `errors`."""
    in_error = {pod.uid: pod.position[0] for pod, _ in errors}
    is_complete = set(range(snapshot.num_engines)) <= set(in_error.values())
    return is_complete and all(pod.uid in in_error for pod in observed.rollouts if pod.is_alive)


def _user_errors(facts: AttemptFacts, observed: Observed) -> _Errors:
    """Rollout pods that are not ready because their engine ended with 40 in the current attempt. Of an engine
    of several pods no kubelet restarts any: it is looked at until it is replaced."""
    found = []
    for pod in observed.rollouts:
        termination = pod.termination or pod.last_termination
        if termination is None or termination.exit_code != ExitCode.USER_ERROR:
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


def _without_engines(cause: Cause[Place], observed: Observed) -> Cause[Place]:
    seconds = observed.remembered.report.absence.seconds
    message = f"{cause.why.message} (and no engine has held the newest weights for {seconds:.0f} s)"
    return replace(cause, why=ReasonMessage(cause.why.reason, message))
