"""What the end of a container means: its reason, its message, and what the process left behind. Pure."""

import re

from pydantic import ValidationError

from grpo_api.contract.endpoints import ROLLOUT_CONTAINER
from grpo_api.contract.exit_codes import exit_policy
from grpo_api.contract.progress import TerminationMessage
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.judge.causes import OOM_KILLED
from grpo_operator.observe.observed import ContainerTermination
from grpo_operator.observe.pod_reasons import image_setting

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


def explain_termination(termination: ContainerTermination) -> ReasonMessage:
    """Why a container ended, as a reason and a sentence."""
    end = end_of(termination)
    return ReasonMessage(end.reason, end.message)


def end_of(termination: ContainerTermination) -> TerminationMessage:
    """How a container ended, from its termination message or else the end of its log. The exit code is that
    of the container, whatever the process wrote."""
    written, code = termination_message_of(termination), termination.exit_code
    if written is not None and termination.reason != OOM_KILLED:
        reason = written.reason if _WORD.match(written.reason) else exit_policy(code).reason
        return written.model_copy(update={"reason": reason, "exit_code": code})
    why = _explain(termination, written)
    return TerminationMessage(reason=why.reason, message=why.message, exit_code=code)


def _explain(termination: ContainerTermination, written: TerminationMessage | None) -> ReasonMessage:
    policy = exit_policy(termination.exit_code)
    if termination.reason == OOM_KILLED:
        section = "rollout" if termination.container == ROLLOUT_CONTAINER else "trainer"
        fix = f"raise {section}.resources.limits.memory or make the work smaller"
        detail = f" ({written.message})" if written and written.message else ""
        return ReasonMessage(
            OOM_KILLED, f"the container {termination.container} ran out of memory: {fix}{detail}"
        )
    tail = termination.message.strip()[-_LOG_TAIL:]
    if termination.reason in _NOT_STARTED:
        named_by = image_setting(is_default=termination.has_default_image)
        return ReasonMessage(
            termination.reason, f"the container cannot be started: is {named_by} a runtime image? {tail}"
        )
    ended = f"the container ended with exit code {termination.exit_code} ({policy.meaning})"
    return ReasonMessage(policy.reason, f"{ended}; the end of its log: {tail}" if tail else ended)
