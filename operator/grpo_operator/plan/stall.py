"""When a trainer that answers, but whose heart does not beat, counts as failed."""

from datetime import datetime

from grpo_api.contract.endpoints import TRAINER_CONTAINER
from grpo_api.contract.environment import Role
from grpo_api.contract.retries import has_begun
from grpo_operator.children.run import Run
from grpo_operator.observed import Observed
from grpo_operator.plan.causes import Cause, Rank
from grpo_operator.plan.counts import is_running
from grpo_operator.plan.draft import Draft
from grpo_operator.plan.gang_view import current_gang
from grpo_operator.plan.progress import last_report

REASON = "TrainerStalled"
_LOOK_AGAIN_SECONDS = 5.0


def stalled_causes(draft: Draft, observed: Observed, run: Run) -> list[Cause]:
    """A trainer whose answers have been the same for `stallTimeoutSeconds`, on this process's own clock.

    Silence is no stall: whoever cannot reach a trainer does not know whether it works. Neither is a long
    start, in which models are loaded and nothing beats yet: that has a deadline of its own.
    """
    signs = observed.signs
    told = last_report(observed, attempt=draft.status.attempt)
    if signs is None or told is None or not has_begun(told):
        return []
    if not is_running(draft, observed):
        return []
    quiet_seconds = (signs.heard_at - signs.changed_at).total_seconds()
    if quiet_seconds < run.spec.stall_timeout_seconds:
        return []
    first = current_gang(observed, attempt=draft.status.attempt)[0]
    doing = f"{told.state.value}: {told.message}" if told.message else told.state.value
    return [
        Cause(
            rank=Rank.CERTAIN,
            role=Role.TRAINER,
            pod=first.name,
            node=first.node,
            container=TRAINER_CONTAINER,
            reason=REASON,
            message=f"the trainer has shown no sign of life for {quiet_seconds:.0f} s "
            f"(stallTimeoutSeconds is {run.spec.stall_timeout_seconds}): last seen at "
            f"{signs.changed_at:%Y-%m-%dT%H:%M:%SZ} after step {told.step} of {told.total_steps}, {doing}",
            exit_code=None,
            finished_at=None,
            is_retried=True,
            is_counted=True,
        )
    ]


def next_look(draft: Draft, observed: Observed, run: Run, now: datetime) -> Draft:
    """Policy part: wake up when the trainer would count as stalled if it did not stir."""
    if observed.signs is None or not is_running(draft, observed):
        return draft
    quiet_seconds = (now - observed.signs.changed_at).total_seconds()
    return draft.waking_after(max(_LOOK_AGAIN_SECONDS, run.spec.stall_timeout_seconds - quiet_seconds))
