"""Why a process ended: the termination message of process 1 of a pod, within what Kubernetes keeps of it, and
what a signal that killed it mostly means."""

import signal
import sys
from pathlib import Path

from grpo_api.contract.exit_codes import exit_policy
from grpo_api.contract.progress import TerminationMessage

MAX_TERMINATION_BYTES = 4096
"""Kubernetes cuts a termination message here."""


def termination_message(exit_code: int, message: str, *, rank: int | None = None) -> TerminationMessage:
    """A termination message whose reason is that of the exit code."""
    return TerminationMessage(
        reason=exit_policy(exit_code).reason, message=message, exit_code=exit_code, rank=rank
    )


def was_killed_by(number: int) -> str:
    """The end of a sentence that names the process: by which signal, and what that mostly means."""
    hint = "; mostly this means out of memory" if number == signal.SIGKILL else ""
    return f"was killed by {signal.Signals(number).name}{hint}"


def write_termination_message(message: TerminationMessage, *, termination_log: Path) -> int:
    """Write why this process ends to `termination_log` and print it; returns the exit code to end with.

    Outside a container that file can often not be written. The exit code and the printed sentence still say
    it.
    """
    print(f"{message.reason} (exit code {message.exit_code}): {message.message}", file=sys.stderr, flush=True)
    try:
        termination_log.write_text(bounded_json(message))
    except OSError as error:
        print(f"no termination message written: {error}", file=sys.stderr, flush=True)
    return message.exit_code


def bounded_json(message: TerminationMessage) -> str:
    """The JSON of a termination message, within its limit: first the notes on single engines are left out,
    then the progress, then text."""
    text = _as_json(message)
    if _is_too_long(text) and message.progress is not None:
        engines = message.progress.engines.model_copy(update={"hung": None, "notes": None})
        progress = message.progress.model_copy(update={"engines": engines})
        message = message.model_copy(update={"progress": progress})
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
