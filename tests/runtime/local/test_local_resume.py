"""`grpo-runtime run` of a job that begins with a checkpoint of another one."""

import fcntl
import json
import shutil
from pathlib import Path

import pytest
from local_command import LocalCommand, job_object

from grpo_runtime.cli import main

RESUMING = job_object(resumeFrom={"job": "first"})


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """The output of the other job, beside that of the job that resumes."""
    folder = tmp_path / "first"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "LATEST").write_text("step-000005\n")
    return folder


def test_a_job_is_looked_for_beside_the_output(tmp_path: Path, first: Path) -> None:
    command = LocalCommand(tmp_path, RESUMING, attempts={1: {"steps": 2, "hold": True}})
    command.wait_for_steps(2)
    command.interrupt()
    assert command.end() == 143
    assert "attempt 1 continues from the checkpoint of step 5 that resumeFrom names" in command.screen()
    config = json.loads((command.output / "run.json").read_text())
    assert (config["resumeFrom"]["source"], config["resumeFrom"]["job"]) == (f"file://{first}", None)

    # it continues without the other one, also from another place
    shutil.rmtree(first)
    moved = tmp_path / "moved"
    moved.mkdir()
    command.output.rename(moved / "out")
    again = LocalCommand(moved, RESUMING)
    assert again.end() == 0, again.screen()
    assert "attempt 2 continues from the checkpoint of step 7\n" in again.screen()


def test_a_run_stays_with_the_job_that_it_began_with(tmp_path: Path, first: Path) -> None:
    assert LocalCommand(tmp_path, RESUMING).end() == 0
    shutil.copytree(first, tmp_path / "second")
    changed = LocalCommand(tmp_path, job_object(resumeFrom={"job": "second"}))
    assert changed.end() == 40
    assert "was begun with another spec (resumeFrom.source was" in changed.screen()


def test_a_job_that_has_no_output_is_named_with_the_place(tmp_path: Path) -> None:
    command = LocalCommand(tmp_path, RESUMING)
    assert command.end() == 40
    assert f"there is no output of first at {tmp_path / 'first'}: run that job first" in command.screen()


def test_a_job_that_still_runs_is_waited_for_by_the_person(tmp_path: Path, first: Path) -> None:
    (first / ".local").mkdir()
    with (first / ".local" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = LocalCommand(tmp_path, RESUMING)
        assert command.end() == 40
    assert f"first still runs in {first}: wait for its end" in command.screen()
    assert LocalCommand(tmp_path, RESUMING).end() == 0


@pytest.mark.parametrize(
    ("resume", "says"),
    [
        ({"job": "first"}, "from the newest checkpoint of job first, unless"),
        (
            {"source": "pvc://runs/a", "load": "Weights", "step": 3},
            "from the weights of the checkpoint of step 3 at pvc://runs/a, unless",
        ),
    ],
)
def test_validate_says_from_where(
    resume: dict[str, object], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps(job_object(resumeFrom=resume)))
    assert main(["validate", str(file)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  resumes")]
    assert says in line
