"""How process 1 of a pod says why it ended, within what Kubernetes keeps of it. Pure."""

from dataclasses import dataclass

from grpo_api.contract.progress import Progress, TerminationMessage

MAX_TERMINATION_BYTES = 4096
"""Kubernetes cuts a termination message here."""


@dataclass(frozen=True)
class Outcome:
    """How process 1 of a pod ends. `rank` is a trainer's local rank that failed first."""

    exit_code: int
    reason: str
    message: str
    rank: int | None = None


def termination_message(outcome: Outcome, progress: Progress | None) -> str:
    """The JSON for /dev/termination-log, within its limit: first the progress is left out, then text."""
    message = TerminationMessage(
        reason=outcome.reason,
        message=outcome.message,
        exit_code=outcome.exit_code,
        rank=outcome.rank,
        progress=progress,
    )
    text = _as_json(message)
    if _is_too_long(text):
        message = message.model_copy(update={"progress": None})
        text = _as_json(message)
    while _is_too_long(text):
        excess = len(text.encode()) - MAX_TERMINATION_BYTES
        shorter = message.message[: -max(1, excess // 6 + 1)]  # JSON spells a character with 1 to 12 bytes
        message = message.model_copy(update={"message": shorter})
        text = _as_json(message)
    return text


def _as_json(message: TerminationMessage) -> str:
    return message.model_dump_json(by_alias=True, exclude_none=True)


def _is_too_long(text: str) -> bool:
    return len(text.encode()) > MAX_TERMINATION_BYTES
