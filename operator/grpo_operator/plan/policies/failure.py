"""Policies: a trainer pod that failed, was deleted or was lost ends the whole attempt; and a person may give
up checkpoints that are gone."""

from dataclasses import replace
from datetime import datetime

from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.judge.attempts import why_final, with_rule
from grpo_api.judge.causes import Cause, Precedence, first_cause
from grpo_api.v1alpha1.spec import FailureAction, FailureRule
from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.causes import advised, causes_of, rule_about, wake_for_causes, with_failure
from grpo_operator.plan.conditions import ConditionState, with_condition
from grpo_operator.plan.draft import Draft, Stage
from grpo_operator.plan.ends import failed
from grpo_operator.plan.last_failure import PodRef
from grpo_operator.plan.suspension import suspended
from grpo_operator.plan.without_progress import with_end, without_progress

SETTLE_SECONDS = 3.0
"""Nodes report a second or two apart, and an eviction later than the end of the containers it stopped. Before
an effect is taken for the cause, the other reports get this long to arrive."""


def end_attempt_on_failure(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Record the cause; then fail the job, go to the next attempt, or suspend the job.

    What follows from a cause, and whether it counts, is decided by the first rule of failurePolicy that is
    about it, and else in `grpo_api.judge`.
    """
    cause = first_cause(causes_of(draft, observed))
    if cause is None:
        return wake_for_causes(draft, observed, now)
    wait = _settling_left(draft, observed, cause, now)
    if wait > 0:
        return draft.waking_after(wait)
    if draft.status.waiting_for_room:
        cause = cause.without_room()
    cause = advised(cause, draft)
    rule = rule_about(cause, draft)
    why = cause.why
    if rule is not None:
        cause = with_rule(cause, rule)
    draft = with_failure(draft, cause)
    if rule is not None and rule.action is FailureAction.SUSPEND:
        return suspended(draft, observed, now, _suspended_by(rule, why, observed))
    final = why_final(
        cause,
        attempt=draft.status.attempt,
        past=without_progress(draft.status),
        max_restarts=draft.snapshot.spec.failure_policy.max_restarts,
        error_before=draft.status.last_error,
    )
    if final is not None:
        return failed(draft, observed, now, final)
    return _next_attempt(draft, observed, cause, now)


def _suspended_by(rule: FailureRule, why: ReasonMessage, observed: Observed) -> ReasonMessage:
    """Why the job is suspended, and what somebody has to change: `spec.suspend` is not true, and must become
    another value than it has now."""
    change = "true and then to false" if observed.job.suspend is False else "false"
    message = (
        f"rule {rule.name} of failurePolicy has suspended the job until you set spec.suspend to {change}: "
        f"{why.message}"
    )
    return ReasonMessage(Reason.SUSPENDED_BY_RULE, message)


def _next_attempt(draft: Draft, observed: Observed, cause: Cause[PodRef], now: datetime) -> Draft:
    attempt = draft.status.attempt + 1
    status = with_condition(
        with_end(draft.status, is_counted=cause.consequence.is_counted),
        ConditionType.RESTARTING,
        ConditionState(True, cause.why.reason, f"attempt {attempt} follows because: {cause.why.message}"),
        generation=observed.job.generation,
        now=now,
        is_new_transition=True,
    )
    changes = {
        "attempt": attempt,
        "phase": Phase.RESTARTING,
        "last_error": cause.error,
        "waiting_for_room": None,
    }
    status = status.model_copy(update=changes)
    return replace(draft, status=status, stage=Stage.ACTIVE).with_facts(observed, now)


def _settling_left(draft: Draft, observed: Observed, cause: Cause[PodRef], now: datetime) -> float:
    """Seconds to wait until all pods and nodes have reported, before this cause is acted on."""
    have_all_reported = all(pod.is_over and not pod.is_settling for pod in draft.facts.gang.values())
    if cause.precedence in {Precedence.CERTAIN, Precedence.DISRUPTION} or have_all_reported:
        return 0.0
    since = observed.remembered.failing_since
    return SETTLE_SECONDS if since is None else SETTLE_SECONDS - (now - since).total_seconds()


def accept_loss(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """No attempt begins below the highest checkpoint that the status knows. Where one has ended because it is
    missing, the annotation with its step has the next one begin, at once, with what is there."""
    status, failure = draft.status, draft.status.last_failure
    if draft.facts.gang or status.highest_checkpoint_step is None:
        return draft
    is_missing = failure is not None and failure.reason == Reason.CHECKPOINT_MISSING
    if not is_missing or observed.job.accepted_loss != str(status.highest_checkpoint_step):
        return draft
    return draft.with_status(highest_checkpoint_step=None, checkpoint_step=None, disruptions_since_progress=0)
