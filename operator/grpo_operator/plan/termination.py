"""What the end of a container means: its reason, its message, and what the process left behind. Pure."""

import re

from pydantic import ValidationError

from grpo_api.contract.endpoints import ROLLOUT_CONTAINER
from grpo_api.contract.exit_codes import ExitCode, ExitPolicy, exit_policy
from grpo_api.contract.progress import TerminationMessage
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ErrorSignature
from grpo_operator.observe.observed import ContainerTermination
from grpo_operator.observe.pod_reasons import image_setting

OOM_KILLED = "OOMKilled"
_NOT_STARTED = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons of a container whose command its node could not run; the exit code is made up by the node."""
_LOG_TAIL = 600
_WORD = re.compile(r"^[A-Za-z][A-Za-z0-9]{0,252}$")


def termination_message_of(termination: ContainerTermination) -> TerminationMessage | None:
    """What process 1 wrote before it ended, without fields that only a newer runtime knows. None where it
    could not: a container that was killed leaves the end of its log, or nothing."""
    try:
        return TerminationMessage.model_validate_json(termination.message, extra="ignore")
    except ValidationError:
        return None


def is_out_of_memory(termination: ContainerTermination) -> bool:
    """Whether the kernel killed the container because it was out of memory."""
    return termination.reason == OOM_KILLED


def error_of(termination: ContainerTermination) -> ErrorSignature | None:
    """The Python error that ended the process, where the same one again means that no attempt helps."""
    written = termination_message_of(termination)
    if written is None or termination.exit_code != ExitCode.UNEXPECTED or is_out_of_memory(termination):
        return None
    return written.error


def policy_of(termination: ContainerTermination, *, has_worked: bool) -> ExitPolicy:
    """The row of the exit-code table for this end of a job that has made a step, or has not; out of memory
    counts as killed."""
    code = ExitCode.KILLED if is_out_of_memory(termination) else termination.exit_code
    return exit_policy(code, has_worked=has_worked)


def explain_termination(termination: ContainerTermination) -> ReasonMessage:
    """Why a container ended, from its termination message or else the end of its log."""
    policy = exit_policy(termination.exit_code)
    written = termination_message_of(termination)
    if is_out_of_memory(termination):
        section = "rollout" if termination.container == ROLLOUT_CONTAINER else "trainer"
        fix = f"raise {section}.resources.limits.memory or make the work smaller"
        detail = f" ({written.message})" if written and written.message else ""
        return ReasonMessage(
            OOM_KILLED, f"the container {termination.container} ran out of memory: {fix}{detail}"
        )
    if written:
        return ReasonMessage(
            written.reason if _WORD.match(written.reason) else policy.reason, written.message
        )
    tail = termination.message.strip()[-_LOG_TAIL:]
    if termination.reason in _NOT_STARTED:
        named_by = image_setting(is_default=termination.has_default_image)
        return ReasonMessage(
            termination.reason, f"the container cannot be started: is {named_by} a runtime image? {tail}"
        )
    ended = f"the container ended with exit code {termination.exit_code} ({policy.meaning})"
    return ReasonMessage(policy.reason, f"{ended}; the end of its log: {tail}" if tail else ended)
