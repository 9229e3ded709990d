"""How a local process ended, read from its exit code and its termination log."""

import signal
from pathlib import Path

from pydantic import ValidationError

from grpo_api.contract.exit_codes import exit_policy
from grpo_api.contract.progress import TerminationMessage
from grpo_runtime.local.processes import Death
from grpo_runtime.termination import Outcome


def last_words(death: Death, *, termination_log: Path) -> Outcome:
    """The outcome of a process: its own sentence, or what its exit code means."""
    told = _read(termination_log)
    if told is not None and told.exit_code == death.exit_code:
        return Outcome(told.exit_code, told.reason, told.message, told.rank)
    policy = exit_policy(death.exit_code)
    if death.signal_number is None:
        sentence = (
            f"{death.name} ended with exit code {death.exit_code} ({policy.meaning}) and gave no reason"
        )
    else:
        sentence = f"{death.name} was killed by {signal.Signals(death.signal_number).name}"
        if death.signal_number == signal.SIGKILL:
            sentence += "; mostly this means out of memory"
    return Outcome(death.exit_code, policy.reason, sentence)


def _read(path: Path) -> TerminationMessage | None:
    try:
        return TerminationMessage.model_validate_json(path.read_text())
    except (FileNotFoundError, ValidationError):
        return None  # a process that was killed leaves none, or half of one
