"""status.lastFailure: where something went wrong, why, and what a person can do about it. Pure.

Whatever it is about, it is made here. What to do may depend on what the job has saved, which the process that
failed does not know.
"""

from dataclasses import dataclass, replace

from grpo_api.contract import labels
from grpo_api.contract.environment import Role
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.judge.causes import OOM_KILLED
from grpo_api.v1alpha1.status import GRPOJobStatus, LastFailure
from grpo_operator.children.snapshot import JobSnapshot

_LONGEST_MESSAGE = 4096
_OUT_OF_MEMORY = frozenset({OOM_KILLED, Reason.GPU_OUT_OF_MEMORY.value})


@dataclass(frozen=True)
class PodRef:
    """The pod that something is wrong with, and its container; empty for what is about no pod."""

    role: Role | None = None
    name: str = ""
    node: str = ""
    container: str = ""


NO_POD = PodRef()


def last_failure(
    why: ReasonMessage, *, attempt: int, pod: PodRef = NO_POD, exit_code: int | None = None
) -> LastFailure:
    """The entry of the status about a failure, or about something that blocks the job."""
    return LastFailure(
        attempt=attempt,
        role=pod.role.value if pod.role else "",
        pod=pod.name,
        node=pod.node,
        container=pod.container,
        reason=why.reason,
        exit_code=exit_code,
        message=why.message[:_LONGEST_MESSAGE],
    )


def with_advice(why: ReasonMessage, status: GRPOJobStatus, *, snapshot: JobSnapshot) -> ReasonMessage:
    """The reason with its message extended by what a person can do: after a lack of memory, and where a
    checkpoint is missing. Any other is returned as it is."""
    if why.reason in _OUT_OF_MEMORY:
        return replace(why, message=f"{why.message}; {_how_to_continue(status, snapshot)}")
    if why.reason == Reason.CHECKPOINT_MISSING and status.highest_checkpoint_step is not None:
        return replace(why, message=f"{why.message}; {_how_to_accept(status, snapshot)}")
    return why


def _how_to_continue(status: GRPOJobStatus, snapshot: JobSnapshot) -> str:
    """How to continue after a lack of memory."""
    saved = status.highest_checkpoint_step
    if saved is not None:
        return (
            f"these fields can be changed in a new job only: with resumeFrom.job: {snapshot.job} it "
            f"continues from the checkpoint of step {saved}"
        )
    lacking = (
        "this one has no checkpoint.claimName"
        if snapshot.spec.checkpoint.claim_name is None
        else "this one has not saved a checkpoint"
    )
    return f"these fields can be changed in a new job only, and {lacking} from which it could continue"


def _how_to_accept(status: GRPOJobStatus, snapshot: JobSnapshot) -> str:
    """How to accept that checkpoints are missing."""
    return (
        f"bring back what was on claim {snapshot.spec.checkpoint.claim_name}, or accept the loss "
        f"of what came after the newest checkpoint that is there: kubectl annotate grpojob {snapshot.job} "
        f"{labels.ACCEPTED_LOSS}={status.highest_checkpoint_step}"
    )
