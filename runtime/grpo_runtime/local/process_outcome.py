"""How a local process ended and why, from its exit and its termination message."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from grpo_api.contract.exit_codes import exit_policy
from grpo_api.contract.progress import TerminationMessage
from grpo_runtime.local.process_table import ProcessExit
from grpo_runtime.process.killed import was_killed_by
from grpo_runtime.process.termination import termination_message


@dataclass(frozen=True)
class ProcessOutcome:
    """How the process `name` ended and why."""

    name: str
    termination: TerminationMessage


def outcome_of(process_exit: ProcessExit, *, termination_log: Path) -> ProcessOutcome:
    """The outcome with the termination message that the process wrote, or else with what its exit says."""
    name, exit_code = process_exit.name, process_exit.exit_code
    written = _read(termination_log)
    if written is not None and written.exit_code == exit_code:
        return ProcessOutcome(name, written)
    if process_exit.signal_number is None:
        sentence = (
            f"{name} ended with exit code {exit_code} ({exit_policy(exit_code).meaning}) and gave no reason"
        )
    else:
        sentence = f"{name} {was_killed_by(process_exit.signal_number)}"
    return ProcessOutcome(name, termination_message(exit_code, sentence))


def _read(path: Path) -> TerminationMessage | None:
    try:
        return TerminationMessage.model_validate_json(path.read_text())
    except (FileNotFoundError, ValidationError):
        return None  # a process that was killed wrote none, or only a part of one
