"""The termination message of process 1, in its file, on standard error, and as exit code; and what is said of
a process that a signal killed."""

import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.progress import (
    MAX_HUNG_REPORTED,
    EngineCounts,
    HungEngine,
    Progress,
    TerminationMessage,
)
from grpo_api.contract.reasons import Reason
from grpo_runtime.process.termination import (
    MAX_TERMINATION_BYTES,
    bounded_json,
    termination_message,
    was_killed_by,
    write_termination_message,
)

PROGRESS = Progress(job_uid="uid", attempt=1, step=3, total_steps=5)


def test_the_reason_is_that_of_the_exit_code() -> None:
    assert termination_message(ExitCode.USER_ERROR, "no column prompt", rank=1) == TerminationMessage(
        reason=Reason.USER_ERROR, message="no column prompt", exit_code=40, rank=1
    )


def test_a_message_that_fits_is_written_whole_and_printed_and_its_exit_code_returned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "termination-log"
    message = termination_message(1, "boom", rank=0).model_copy(update={"progress": PROGRESS})
    assert write_termination_message(message, termination_log=log) == 1
    assert TerminationMessage.model_validate_json(log.read_text()) == message
    assert capsys.readouterr().err == "UnexpectedError (exit code 1): boom\n"


def test_outside_a_container_the_sentence_and_the_exit_code_still_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = termination_message(ExitCode.USER_ERROR, "no column prompt")
    assert write_termination_message(message, termination_log=tmp_path / "missing" / "log") == 40
    first, second = capsys.readouterr().err.splitlines()
    assert first == "UserError (exit code 40): no column prompt"
    assert second.startswith("no termination message written: ")


def test_a_message_that_is_too_long_loses_what_it_tells_of_single_engines_first() -> None:
    hung = tuple(
        HungEngine(name=f"pod-{i}", instance=f"{i}", since=datetime(2026, 11, 23, tzinfo=UTC), why="x" * 250)
        for i in range(MAX_HUNG_REPORTED)
    )
    engines = EngineCounts(desired=16, known=16, current=0, hung=hung)
    progress = PROGRESS.model_copy(update={"engines": engines, "checkpoint_step": 7})
    long = termination_message(1, "boom", rank=0).model_copy(update={"progress": progress})
    cut = TerminationMessage.model_validate_json(bounded_json(long))
    assert cut.progress is not None
    assert (cut.progress.checkpoint_step, cut.progress.engines.hung) == (7, None)


def test_a_message_that_is_too_long_loses_its_progress_and_then_text() -> None:
    long = termination_message(1, "✗\n" * 4000, rank=0).model_copy(update={"progress": PROGRESS})
    text = bounded_json(long)
    assert 2000 < len(text.encode()) <= MAX_TERMINATION_BYTES
    cut = TerminationMessage.model_validate_json(text)
    assert (cut.progress, cut.rank) == (None, 0)
    assert cut.message.startswith("✗\n")


def test_the_signal_is_named_and_sigkill_is_explained() -> None:
    assert was_killed_by(signal.SIGTERM) == "was killed by SIGTERM"
    assert was_killed_by(signal.SIGKILL) == "was killed by SIGKILL; mostly this means out of memory"
