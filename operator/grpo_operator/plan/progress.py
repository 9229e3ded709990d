"""Policy: fold the trainer's newest report into status."""

from datetime import datetime

from pydantic import ValidationError

from grpo_api.contract.progress import Progress, TerminationMessage
from grpo_api.v1alpha1.status import GRPOJobStatus
from grpo_operator.observed import Observed, PodView
from grpo_operator.plan.draft import Draft, Stage
from grpo_operator.plan.gang_view import current_gang

_LARGE = 1e9


def fold_progress(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Numbers for people are rounded strings. A trainer's last words hold its last report, which matters
    when it ended between two polls. Without news the old numbers stay."""
    if draft.stage is not Stage.ACTIVE or draft.status.attempt == 0:
        return draft
    told = newest_progress(observed, attempt=draft.status.attempt)
    if told is None:
        return draft
    rate = told.tokens_per_second
    return draft.with_status(
        step=told.step,
        progress=f"{told.step}/{draft.status.total_steps}",
        reward="" if told.reward is None else _rounded(told.reward),
        policy_version=told.policy_version,
        tokens_per_second="" if rate is None else f"{rate:.0f}",
        checkpoint_step=told.checkpoint_step,
        rollout=draft.status.rollout.model_copy(update={"current": told.engines.current}),
    )


def _rounded(reward: float) -> str:
    """Three decimals, and no more characters than a column can hold."""
    return f"{reward:.3f}" if abs(reward) < _LARGE else f"{reward:.3e}"


def newest_progress(observed: Observed, *, attempt: int) -> Progress | None:
    """What this attempt's trainer 0 reported since this process last wrote the status; None without news.

    Each report is told once, and not when status has a later one from another operator: two that each
    wrote again what they heard last would undo each other's writes.
    """
    first = current_gang(observed, attempt=attempt).get(0)
    last_words = _last_words(first, uid=observed.job.uid, attempt=attempt) if first else None
    is_newest = observed.is_news and observed.complaint is None
    polled = last_report(observed, attempt=attempt) if is_newest else None
    told = last_words or polled
    return None if told and _is_behind(told, observed.job.status) else told


def last_report(observed: Observed, *, attempt: int) -> Progress | None:
    """What this attempt's trainer 0 last said to this process, news or not."""
    return observed.progress if observed.progress and observed.progress.attempt == attempt else None


def _is_behind(told: Progress, status: GRPOJobStatus) -> bool:
    """Steps and checkpoints only grow within an attempt; the next one may go back to its checkpoint."""
    if not status.policy_version.startswith(f"{told.attempt}."):
        return False
    return (told.step, _saved(told.checkpoint_step)) < (status.step, _saved(status.checkpoint_step))


def _saved(step: int | None) -> int:
    return -1 if step is None else step


def _last_words(pod: PodView, *, uid: str, attempt: int) -> Progress | None:
    if pod.ending is None:
        return None
    try:
        told = TerminationMessage.model_validate_json(pod.ending.message).progress
    except ValidationError:
        return None  # not every end leaves words: killed containers leave log lines or nothing
    return told if told and (told.job_uid, told.attempt) == (uid, attempt) else None
