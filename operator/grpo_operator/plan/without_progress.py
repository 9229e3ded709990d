"""What a status says about the attempts that ended since the job last made progress. Pure."""

from grpo_api.judge.attempts import WithoutProgress
from grpo_api.v1alpha1.status import GRPOJobStatus
from grpo_operator.children.snapshot import JobSnapshot


def without_progress(status: GRPOJobStatus) -> WithoutProgress:
    """The attempts that ended since the job last made progress."""
    return WithoutProgress(
        num_failures=status.failures_since_progress,
        num_disruptions=status.disruptions_since_progress,
        checkpoint_step=status.highest_checkpoint_step,
    )


def has_worked(status: GRPOJobStatus) -> bool:
    """Whether an attempt of the job has made a step, whatever has become of it."""
    return status.highest_step > 0


def with_committed(
    status: GRPOJobStatus, checkpoint_step: int | None, *, snapshot: JobSnapshot
) -> GRPOJobStatus:
    """The status once this checkpoint is committed. One outside a claim is lost with its attempt and is no
    progress."""
    if snapshot.spec.checkpoint.claim_name is None:
        return status
    return _with(status, without_progress(status).with_checkpoint(checkpoint_step))


def with_end(status: GRPOJobStatus, *, is_counted: bool) -> GRPOJobStatus:
    """The status once one more attempt has ended, and another one follows."""
    totals = {
        "restarts": status.restarts + is_counted,
        "disruptions": status.disruptions + (not is_counted),
    }
    ended = without_progress(status).with_end(is_counted=is_counted)
    return _with(status, ended).model_copy(update=totals)


def _with(status: GRPOJobStatus, past: WithoutProgress) -> GRPOJobStatus:
    return status.model_copy(
        update={
            "failures_since_progress": past.num_failures,
            "disruptions_since_progress": past.num_disruptions,
            "highest_checkpoint_step": past.checkpoint_step,
        }
    )
