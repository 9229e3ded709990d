"""Policy: a trainer pod that failed, was deleted or was lost ends the whole attempt."""

from dataclasses import replace
from datetime import datetime

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.v1alpha1.status import ConditionType, LastFailure, Phase
from grpo_operator.observed import Observed
from grpo_operator.plan.causes import (
    Cause,
    Rank,
    engine_causes,
    first_cause,
    is_done,
    trainer_causes,
    vanished_causes,
)
from grpo_operator.plan.conditions import with_condition
from grpo_operator.plan.draft import Draft, Stage
from grpo_operator.plan.gang_view import current_gang, missing_indices, was_complete
from grpo_operator.plan.outcome import failed
from grpo_operator.plan.stall import next_look, stalled_causes

SETTLE_SECONDS = 3.0
"""Nodes report a second or two apart, and an eviction later than the end it brought: before an effect is
taken for the cause the others get this long."""


def find_causes(draft: Draft, observed: Observed) -> list[Cause]:
    """Everything wrong with the current attempt."""
    if draft.stage is not Stage.ACTIVE or draft.run is None:
        return []
    attempt = draft.status.attempt
    gang = current_gang(observed, attempt=attempt)
    if 0 in gang and is_done(gang[0]):
        return []
    causes = trainer_causes(gang.values()) + engine_causes(observed.rollouts)
    if observed.job.status.attempt == attempt and was_complete(observed.job.status):
        names = draft.run.names
        missing = missing_indices(observed, draft.run, attempt=attempt)
        causes += vanished_causes(names.trainer(attempt=attempt, index=index) for index in missing)
    return [_unasked(cause) for cause in causes] + stalled_causes(draft, observed, draft.run)


def _unasked(cause: Cause) -> Cause:
    """A trainer that was asked to stop although nobody took its pod away: by its own liveness probe, which
    leaves no trace on the pod. Uncounted it would go on like that for ever."""
    if cause.rank is Rank.DISRUPTION or cause.exit_code != ExitCode.TERMINATED:
        return cause
    message = (
        f"trainer pod {cause.pod} was asked to stop although it was neither deleted nor evicted, most likely "
        f"by its liveness probe: {cause.message}"
    )
    return replace(cause, is_counted=True, message=message)


def end_attempt_on_failure(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Record the cause; then fail the job, or go to the next attempt.

    Disruptions are not counted against failurePolicy.maxRestarts, unlike a stop nobody asked for.
    """
    cause = first_cause(find_causes(draft, observed))
    if draft.run is None:
        return draft
    if cause is None:
        return next_look(draft, observed, draft.run, now)
    patience = _patience(draft, observed, cause, now)
    if patience > 0:
        return draft.waking_after(patience)
    attempt, restarts = draft.status.attempt, draft.status.restarts
    max_restarts = draft.run.spec.failure_policy.max_restarts
    draft = draft.with_status(last_failure=_last_failure(cause, attempt=attempt))
    if not cause.is_retried:
        return failed(draft, observed, now, reason=cause.reason, message=cause.message)
    if cause.is_counted and restarts >= max_restarts:
        message = f"attempt {attempt} failed and failurePolicy.maxRestarts ({max_restarts}) is used up"
        return failed(draft, observed, now, reason=cause.reason, message=f"{message}: {cause.message}")
    return _next_attempt(draft, observed, cause, now)


def _next_attempt(draft: Draft, observed: Observed, cause: Cause, now: datetime) -> Draft:
    status = with_condition(
        draft.status,
        ConditionType.RESTARTING,
        is_met=True,
        reason=cause.reason,
        message=f"attempt {draft.status.attempt + 1} follows because: {cause.message}",
        generation=observed.job.generation,
        now=now,
        is_new_transition=True,
    )
    return draft.with_status(
        attempt=status.attempt + 1,
        restarts=status.restarts + cause.is_counted,
        disruptions=status.disruptions + (not cause.is_counted),
        phase=Phase.RESTARTING,
        conditions=status.conditions,
    )


def _patience(draft: Draft, observed: Observed, cause: Cause, now: datetime) -> float:
    """Seconds to wait for the others' ends, and for every node's verdict, before this cause is believed."""
    gang = current_gang(observed, attempt=draft.status.attempt).values()
    have_all_told = all(pod.is_over and not pod.is_settling for pod in gang)
    if cause.rank in {Rank.CERTAIN, Rank.DISRUPTION} or have_all_told:
        return 0.0
    if observed.failing_since is None:
        return SETTLE_SECONDS
    return SETTLE_SECONDS - (now - observed.failing_since).total_seconds()


def _last_failure(cause: Cause, *, attempt: int) -> LastFailure:
    return LastFailure(
        attempt=attempt,
        role=cause.role.value,
        pod=cause.pod,
        node=cause.node,
        container=cause.container,
        reason=cause.reason,
        exit_code=cause.exit_code,
        message=cause.message[:4096],
    )
