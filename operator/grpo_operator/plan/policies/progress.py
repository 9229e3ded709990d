"""Policy: the trainer's newest report goes into the status."""

from dataclasses import replace
from datetime import datetime

from grpo_api.contract.progress import AsyncProgress
from grpo_api.judge.clocks import has_made_a_step
from grpo_api.v1alpha1.status import AsyncStatus, GRPOJobStatus
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.draft import Draft
from grpo_operator.plan.without_progress import with_committed

_LARGE = 1e9


def fold_progress(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Write the newest report into the status; numbers for people are rounded strings. Without a new report
    the old numbers stay. An attempt that resumes and has made no step keeps those of the last step. A
    checkpoint beyond all earlier ones gives the restarts of failurePolicy.maxRestarts back."""
    if draft.status.is_held_back:
        return draft  # a report of a pod that was given back says nothing of the pods that come
    progress = draft.facts.new_progress
    if progress is None:
        return draft
    if draft.known_snapshot is not None:
        status = with_committed(draft.status, progress.checkpoint_step, snapshot=draft.known_snapshot)
        draft = replace(draft, status=status)
    resumed_from = draft.status.resumed_from
    if resumed_from is not None and progress.loaded_step is not None:
        resumed_from = resumed_from.model_copy(update={"step": progress.loaded_step})
    reward, rate, ahead = progress.reward, progress.tokens_per_second, progress.asynchronous
    # an attempt that begins anew has lost its steps, and the numbers with them
    has_none = progress.step > 0 and not has_made_a_step(progress)
    before = draft.status if has_none else GRPOJobStatus()
    best = progress.best_evaluation
    # of algorithm.epochs only the trainer knows how many steps they are
    total = draft.status.total_steps or progress.total_steps
    return draft.with_status(
        step=progress.step,
        highest_step=max(draft.status.highest_step, progress.step if has_made_a_step(progress) else 0),
        total_steps=total,
        progress=f"{progress.step}/{total or '?'}",
        reward=before.reward if reward is None else _rounded(reward),
        policy_version=progress.policy_version,
        tokens_per_second=before.tokens_per_second if rate is None else f"{rate:.0f}",
        asynchronous=before.asynchronous if ahead is None else _async_status(ahead),
        checkpoint_step=progress.checkpoint_step,
        # an attempt that has not saved yet knows nothing better than those before
        checkpoint_seconds=progress.checkpoint_seconds or draft.status.checkpoint_seconds,
        best_step=best.step if best else draft.status.best_step,
        resumed_from=resumed_from,
        rollout=draft.status.rollout.model_copy(update={"current": progress.engines.current}),
    )


def _async_status(progress: AsyncProgress) -> AsyncStatus:
    return AsyncStatus(
        mean_staleness=f"{progress.mean_staleness:.2f}",
        max_staleness=progress.max_staleness,
        num_queued=progress.num_queued,
        num_running=progress.num_running,
    )


def _rounded(reward: float) -> str:
    """Three decimals, and no more characters than a column can hold."""
    return f"{reward:.3f}" if abs(reward) < _LARGE else f"{reward:.3e}"
