"""Policy: the trainer's newest report goes into the status."""

from datetime import datetime

from grpo_operator.observe.observed import Observed
from grpo_operator.plan.draft import Draft, Stage

_LARGE = 1e9


def fold_progress(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Numbers for people are rounded strings. Without a new report the old numbers stay."""
    if draft.stage is not Stage.ACTIVE or draft.status.attempt == 0:
        return draft
    progress = draft.facts.new_progress
    if progress is None:
        return draft
    rate = progress.tokens_per_second
    return draft.with_status(
        step=progress.step,
        progress=f"{progress.step}/{draft.status.total_steps}",
        reward="" if progress.reward is None else _rounded(progress.reward),
        policy_version=progress.policy_version,
        tokens_per_second="" if rate is None else f"{rate:.0f}",
        checkpoint_step=progress.checkpoint_step,
        rollout=draft.status.rollout.model_copy(update={"current": progress.engines.current}),
    )


def _rounded(reward: float) -> str:
    """Three decimals, and no more characters than a column can hold."""
    return f"{reward:.3f}" if abs(reward) < _LARGE else f"{reward:.3e}"
