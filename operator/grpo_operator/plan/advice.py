"""What a person can do about a failure, where that depends on what the job has saved: the process that failed
does not know it. Pure."""

from dataclasses import replace

from grpo_api.contract import labels
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.judge.causes import OOM_KILLED
from grpo_api.v1alpha1.status import GRPOJobStatus
from grpo_operator.children.snapshot import JobSnapshot

_OUT_OF_MEMORY = frozenset({OOM_KILLED, Reason.GPU_OUT_OF_MEMORY.value})


def with_advice(why: ReasonMessage, status: GRPOJobStatus, *, snapshot: JobSnapshot) -> ReasonMessage:
    """The sentence with how to go on after a lack of memory, or without a checkpoint that is missing; one
    about anything else is returned as it is."""
    if why.reason in _OUT_OF_MEMORY:
        return replace(why, message=f"{why.message}; {_how_to_go_on(status, snapshot)}")
    if why.reason == Reason.CHECKPOINT_MISSING and status.highest_checkpoint_step is not None:
        return replace(why, message=f"{why.message}; {_how_to_accept(status, snapshot)}")
    return why


def _how_to_accept(status: GRPOJobStatus, snapshot: JobSnapshot) -> str:
    return (
        f"bring back what was on claim {snapshot.spec.checkpoint.claim_name}, or give up what came after the "
        f"newest checkpoint that is there: kubectl annotate grpojob {snapshot.job} "
        f"{labels.ACCEPTED_LOSS}={status.highest_checkpoint_step}"
    )


def _how_to_go_on(status: GRPOJobStatus, snapshot: JobSnapshot) -> str:
    saved = status.highest_checkpoint_step
    if saved is not None:
        return (
            f"these fields can be changed in a new job only: with resumeFrom.job: {snapshot.job} it goes on "
            f"from the checkpoint of step {saved}"
        )
    lacking = (
        "this one has no checkpoint.claimName"
        if snapshot.spec.checkpoint.claim_name is None
        else "this one has not saved a checkpoint"
    )
    return f"these fields can be changed in a new job only, and {lacking} from which it could go on"
