"""`grpo-runtime run` with fake roles, stopped: by Ctrl-C, a closed terminal, a full volume, a kill."""

import json
import re
import signal
from pathlib import Path

from local_command import LocalCommand, job_object
from polling import wait_until

HOLD = {"steps": 3, "hold": True}
FULL = Path("/dev/full")
"""Answers every write as a volume without space left."""


def test_control_c_saves_and_the_same_command_goes_on(tmp_path: Path) -> None:
    first = LocalCommand(tmp_path, job_object(), attempts={1: HOLD})
    first.wait_for_steps(3)
    first.interrupt()
    assert first.end() == 143
    again = f"grpo-runtime run {tmp_path}/job.yaml --output {first.output}"
    assert f"stopped, saved: {first.output}/checkpoints/step-000003" in first.screen()
    assert f"the same command continues from there: {again}" in first.screen()
    uid = json.loads((first.output / "run.json").read_text())["job"]["uid"]

    second = LocalCommand(tmp_path, job_object())
    assert second.end() == 0
    assert "attempt 2 continues from the checkpoint of step 3" in second.screen()
    assert json.loads((second.output / "run.json").read_text())["job"]["uid"] == uid
    assert second.num_steps() == 8


def test_a_second_control_c_ends_everything_at_once(tmp_path: Path) -> None:
    command = LocalCommand(tmp_path, job_object(), attempts={1: {**HOLD, "ignores_sigterm": True}})
    command.wait_for_steps(3)
    command.interrupt()
    wait_until(lambda: "stopping:" in command.screen(), "the stop is acknowledged")
    command.interrupt()
    assert command.end() == 130


def test_control_c_in_a_terminal_reaches_the_command_alone(tmp_path: Path) -> None:
    command = LocalCommand(tmp_path, job_object(), attempts={1: HOLD}, is_on_terminal=True)
    command.wait_for_steps(3)
    command.type_control_c()
    assert command.end() == 143
    terminal = command.read_terminal()
    assert "stopped, saved:" in terminal
    assert re.search(r"3/8 .*reward=0.375", terminal)
    assert "heard SIGINT" not in (command.output / "logs/trainer-0.log").read_text()


def test_a_log_without_space_left_is_a_sentence_and_not_a_traceback(tmp_path: Path) -> None:
    log = tmp_path / "out/logs/trainer-0.log"
    log.parent.mkdir(parents=True)
    log.symlink_to(FULL)
    command = LocalCommand(tmp_path, job_object())
    assert command.end() == 75
    assert_says_that_the_volume_is_full(command)


def test_a_stop_that_finds_no_space_left_is_a_sentence_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    command = LocalCommand(tmp_path, job_object(), attempts={1: HOLD})
    command.wait_for_steps(3)
    # where the state is written before it replaces the old one
    (command.output / f".local/.state.json.{command.process.pid}.tmp").symlink_to(FULL)
    command.interrupt()
    assert command.end() == 75
    assert_says_that_the_volume_is_full(command)
    assert command.checkpoint() == "step-000003"


def assert_says_that_the_volume_is_full(command: LocalCommand) -> None:
    assert f"failed: VolumeFull (exit code 75): the volume of {command.output} is full" in command.screen()
    assert "the same command continues from there: grpo-runtime run" in command.screen()
    assert "Traceback" not in command.screen()


def test_a_terminal_that_is_closed_saves_and_stops(tmp_path: Path) -> None:
    command = LocalCommand(tmp_path, job_object(), attempts={1: HOLD}, is_on_terminal=True)
    command.wait_for_steps(3)
    command.close_terminal()
    assert command.end() == 143
    assert command.checkpoint() == "step-000003"


def test_a_second_sighup_or_one_beside_a_sigterm_still_saves(tmp_path: Path) -> None:
    command = LocalCommand(
        tmp_path, job_object(), attempts={1: {**HOLD, "saves_at": "release"}}, is_on_terminal=True
    )
    command.wait_for_steps(3)
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
        command.process.send_signal(number)
        wait_until(lambda number=number: not command.has_pending(number), "the command receives the signal")
    (command.output / "release").touch()
    assert command.end() == 143
    assert command.checkpoint() == "step-000003"


def test_control_c_saves_also_when_no_process_reads_the_pipe_any_more(tmp_path: Path) -> None:
    command = LocalCommand(tmp_path, job_object(), attempts={1: HOLD}, is_piped=True)
    command.wait_for_steps(3)
    command.close_pipe()
    command.interrupt()
    assert command.end() == 143
    assert command.checkpoint() == "step-000003"


def test_a_job_whose_pipe_no_process_reads_trains_to_its_end(tmp_path: Path) -> None:
    command = LocalCommand(tmp_path, job_object(), is_piped=True)
    command.close_pipe()
    assert command.end() == 0
    assert command.num_steps() == 8


def test_when_the_command_is_killed_nothing_outlives_it(tmp_path: Path) -> None:
    command = LocalCommand(
        tmp_path, job_object(rollout={"replicas": 2}), attempts={1: {**HOLD, "ignores_sigterm": True}}
    )
    command.wait_for_steps(3)
    wait_until(lambda: len(command.others()) == 3, "both engines are started too")
    command.process.kill()
    command.process.wait()
    wait_until(lambda: command.others() == [], "all processes are gone")
    # and the directory is free for the next one
    assert LocalCommand(tmp_path, job_object()).end() == 0
