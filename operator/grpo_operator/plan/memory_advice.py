"""What a person can do about a pod that ran out of memory: its fields are frozen, those of a new job are not.
Pure."""

from dataclasses import replace

from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.v1alpha1.status import GRPOJobStatus
from grpo_operator.children.frozen_job import FrozenJob
from grpo_operator.plan.termination import OOM_KILLED

_OUT_OF_MEMORY = frozenset({OOM_KILLED, Reason.GPU_OUT_OF_MEMORY.value})


def with_memory_advice(why: ReasonMessage, status: GRPOJobStatus, *, frozen: FrozenJob) -> ReasonMessage:
    """The sentence with how to go on in a new job; one about anything else is returned as it is."""
    if why.reason not in _OUT_OF_MEMORY:
        return why
    return replace(why, message=f"{why.message}; {_how_to_go_on(status, frozen)}")


def _how_to_go_on(status: GRPOJobStatus, frozen: FrozenJob) -> str:
    saved = status.highest_checkpoint_step
    if saved is not None:
        return (
            f"these fields can be changed in a new job only: with resumeFrom.job: {frozen.job} it goes on "
            f"from the checkpoint of step {saved}"
        )
    lacking = (
        "this one has no checkpoint.claimName"
        if frozen.spec.checkpoint.claim_name is None
        else "this one has not saved a checkpoint"
    )
    return f"these fields can be changed in a new job only, and {lacking} from which it could go on"
