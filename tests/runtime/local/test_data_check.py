"""A fault of the data ends `grpo-runtime run` before any of its processes starts."""

import json
from pathlib import Path

from local_command import LocalCommand, job_object
from polling import wait_until


def ends_with(code: int, message: str) -> str:
    """A check that ends so."""
    termination = {"schemaVersion": 1, "reason": "Reason", "message": message, "exitCode": code}
    return f"echo '{json.dumps(termination)}' > $2; echo checked >> {{calls}}; exit {code}"


def run(folder: Path, check: str) -> LocalCommand:
    return LocalCommand(folder, job_object(), data_check=check.replace("{calls}", str(folder / "calls")))


def test_a_fault_is_told_and_nothing_starts(tmp_path: Path) -> None:
    command = run(tmp_path, ends_with(40, "row 3 of the dataset has no usable prompt"))
    assert command.end() == 40
    assert "error: row 3 of the dataset has no usable prompt" in command.screen()
    assert command.engines() == []
    assert "step 1/8" not in command.screen()


def test_what_is_no_fault_of_the_job_is_left_to_the_first_attempt(tmp_path: Path) -> None:
    command = run(tmp_path, ends_with(75, "the Hub is away"))
    assert command.end() == 0
    assert "the Hub is away" not in command.screen()


def test_a_stop_while_it_is_looked_at_ends_the_command_with_nothing_started(tmp_path: Path) -> None:
    command = run(tmp_path, "touch {calls}; sleep 600 & wait")
    wait_until((tmp_path / "calls").exists, "the check")
    command.interrupt()
    assert command.end() == 143
    assert "stopped before anything began" in command.screen()
    assert command.engines() == []


def test_a_command_that_goes_on_looks_at_nothing_again(tmp_path: Path) -> None:
    check = ends_with(0, "")
    job, calls = job_object(), tmp_path / "calls"
    first = LocalCommand(
        tmp_path,
        job,
        attempts={1: {"steps": 3, "hold": True}},
        data_check=check.replace("{calls}", str(calls)),
    )
    first.wait_for_steps(3)
    first.interrupt()
    assert first.end() == 143
    assert LocalCommand(tmp_path, job, data_check=check.replace("{calls}", str(calls))).end() == 0
    assert calls.read_text() == "checked\n"
