"""`grpo-runtime run` with fake roles: which processes there are, when they start again, and how it ends."""

import os
import re
import signal
import stat
from pathlib import Path

import pytest
from local_command import LocalCommand, job_object
from polling import DEADLINE_SECONDS, wait_until

from grpo_api.contract.environment import COLOCATED_ENV, ROLLOUT_ENV, TRAINER_ENV

HOLD = {"steps": 3, "hold": True}


def test_a_job_runs_to_its_end_and_every_step_is_a_line(tmp_path: Path) -> None:
    command = LocalCommand(tmp_path, job_object())
    assert command.end() == 0
    screen = command.screen()
    assert re.findall(r"^step (\d)/8  reward (\S+)", screen, re.M)[-1] == ("8", "1.000")
    assert len(re.findall(r"^step ", screen, re.M)) == 8
    assert "reward, steps 1 to 8" in screen
    assert f"done: the trained policy is in {command.output}/model" in screen


def test_both_roles_are_given_exactly_the_variables_of_their_pods(tmp_path: Path) -> None:
    command = LocalCommand(tmp_path, job_object(rollout={"replicas": 2}), attempts={1: HOLD})
    command.wait_for_steps(3)
    wait_until(lambda: len(command.engines()) == 2, "both engines run")
    command.interrupt()
    assert command.end() == 143
    variables = command.variables(1)
    assert variables.keys() == TRAINER_ENV
    assert variables["GRPO_OUTPUT_DIR"] == str(command.output)
    engines = command.engines()
    assert [engine["variables"].keys() for engine in engines] == [ROLLOUT_ENV, ROLLOUT_ENV]
    assert {f"127.0.0.1:{engine['port']}" for engine in engines} == set(
        variables["GRPO_ROLLOUT_HOST"].split(",")
    )


def test_a_colocated_job_has_no_engine_processes_and_no_tokens(tmp_path: Path) -> None:
    command = LocalCommand(tmp_path, job_object(rollout=None), attempts={1: HOLD})
    command.wait_for_steps(3)
    assert command.variables(1).keys() == COLOCATED_ENV
    assert not (command.output / ".local/tokens").exists()
    command.interrupt()
    assert command.end() == 143
    assert command.engines() == []


def test_only_this_user_can_read_the_tokens_and_they_are_nowhere_else(tmp_path: Path) -> None:
    command = LocalCommand(tmp_path, job_object(), attempts={1: HOLD})
    command.wait_for_steps(3)
    folder = Path(command.variables(1)["GRPO_TOKENS_DIR"])
    tokens = {path.read_text().strip() for path in folder.iterdir()}
    assert len(tokens) == 2 and all(len(token) > 30 for token in tokens)
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    wait_until(command.engines, "the engine is there")
    others = [Path(f"/proc/{pid}/{file}") for pid in command.others() for file in ("cmdline", "environ")]
    assert len(others) == 4
    command.interrupt()
    assert command.end() == 143
    assert not folder.exists()
    written = [path for path in command.output.rglob("*") if path.is_file()]
    assert not any(token in path.read_text(errors="replace") for token in tokens for path in written)
    assert not any(token in command.screen() for token in tokens)


def test_a_failed_trainer_is_started_again_as_the_next_attempt_from_its_checkpoint(tmp_path: Path) -> None:
    command = LocalCommand(tmp_path, job_object(), attempts={1: {"steps": 3, "exit": 1}})
    assert command.end() == 0
    screen = command.screen()
    assert "attempt 2 follows because: the fake was told to fail; log " in screen
    assert "attempt 2 continues from the checkpoint of step 3" in screen
    assert command.num_steps() == 8


def test_a_hub_that_cannot_be_reached_uses_up_no_restart(tmp_path: Path) -> None:
    plan = {1: {"steps": 0, "exit": 75, "reason": "HubUnreachable", "message": "the Hub cannot be reached"}}
    command = LocalCommand(tmp_path, job_object(failurePolicy={"maxRestarts": 0}), attempts=plan)
    assert command.end() == 0
    assert "attempt 2 follows because: the Hub cannot be reached" in command.screen()


def test_the_attempt_after_one_whose_gpu_was_out_of_memory_has_half_the_budget_and_so_have_later_ones(
    tmp_path: Path,
) -> None:
    small = {"steps": 2, "exit": 75, "reason": "GPUOutOfMemory", "message": "a GPU is out of memory"}
    job = job_object(trainer={"microBatchTokens": 600}, failurePolicy={"maxRestarts": 1})
    command = LocalCommand(tmp_path, job, attempts={1: small, 2: {"steps": 1, "exit": 1}})
    assert command.end() == 0
    assert "attempt 2 follows because: a GPU is out of memory" in command.screen()
    told = [command.variables(attempt).get("GRPO_MICRO_BATCH_TOKENS") for attempt in (1, 2, 3)]
    assert told == [None, "300", "300"]


def test_attempts_that_lose_their_steps_are_consecutive_failures_and_wait(tmp_path: Path) -> None:
    losing = {number: {"steps": 3, "exit": 1, "lost": True} for number in (1, 2)}
    command = LocalCommand(tmp_path, job_object(), attempts=losing)
    wait_until(lambda: "attempt 3 follows in 5 s because" in command.screen(), "the third attempt waits")
    assert "attempt 2 follows because" in command.screen()
    command.interrupt()
    assert command.end() == 143
    assert not (command.output / "variables-3.json").exists()


def test_attempts_that_each_save_a_checkpoint_do_not_wait(tmp_path: Path) -> None:
    saving = {number: {"steps": 3, "exit": 1} for number in (1, 2)}
    command = LocalCommand(tmp_path, job_object(), attempts=saving)
    assert command.end() == 0
    assert "attempt 3 follows because" in command.screen()


def test_a_trainer_that_was_killed_is_started_again(tmp_path: Path) -> None:
    command = LocalCommand(tmp_path, job_object(), attempts={1: HOLD})
    command.wait_for_steps(3)
    wait_until(command.engines, "the engine is there")
    (engine,) = command.engines()
    (trainer,) = set(command.others()) - {engine["pid"]}
    os.kill(trainer, signal.SIGKILL)
    assert command.end() == 0
    assert "attempt 2 follows because: trainer-0 was killed by SIGKILL" in command.screen()
    assert len(command.engines()) == 1


def test_when_max_restarts_is_used_up_the_cause_and_its_log_are_named(tmp_path: Path) -> None:
    failing = {number: {"steps": 0, "exit": 1} for number in range(1, 9)}
    command = LocalCommand(tmp_path, job_object(failurePolicy={"maxRestarts": 1}), attempts=failing)
    assert command.end() == 1
    screen = command.screen()
    used_up = "attempt 2 failed and failurePolicy.maxRestarts (1) is used up since the checkpoint of step 0"
    assert f"failed: FakeReason (exit code 1): {used_up}: the fake was told to fail" in screen
    assert f"log {command.output}/logs/trainer-0.log" in screen


def test_an_error_of_the_user_is_not_tried_again(tmp_path: Path) -> None:
    plan = {1: {"steps": 0, "exit": 40, "reason": "UserError", "message": "no column prompt"}}
    command = LocalCommand(tmp_path, job_object(), attempts=plan)
    assert command.end() == 40
    assert "failed: UserError (exit code 40): no column prompt" in command.screen()
    assert not (command.output / "variables-2.json").exists()


def test_an_attempt_that_begins_no_step_in_time_is_ended_and_fails_the_job(tmp_path: Path) -> None:
    idle = {1: {"steps": 0, "hold": True, "ignores_sigterm": True}}
    command = LocalCommand(tmp_path, job_object(startupDeadlineSeconds=1), attempts=idle)
    assert command.end() == 40
    expected = (
        "failed: StartupDeadlineExceeded (exit code 40): no step began within startupDeadlineSeconds (1)"
    )
    assert expected in command.screen()
    assert not (command.output / "variables-2.json").exists()


def test_a_lost_engine_is_started_again_at_its_address_while_training_goes_on(tmp_path: Path) -> None:
    command = LocalCommand(tmp_path, job_object(), attempts={1: HOLD})
    command.wait_for_steps(3)
    wait_until(command.engines, "the engine is there")
    os.kill(command.engines()[0]["pid"], signal.SIGKILL)
    wait_until(lambda: len(command.engines()) == 2, "the engine is back")
    assert "rollout-0 is started again: rollout-0 was killed by SIGKILL" in command.screen()
    command.interrupt()
    assert command.end() == 143
    first, second = command.engines()
    assert first["port"] == second["port"] and first["pid"] != second["pid"]
    assert not (command.output / "variables-2.json").exists()


def test_an_engine_that_refuses_the_job_fails_it_with_its_own_message(tmp_path: Path) -> None:
    idle = {1: {"steps": 0, "hold": True}}
    command = LocalCommand(tmp_path, job_object(), attempts=idle, engine={1: 40})
    assert command.end() == 40
    assert "failed: UserError (exit code 40): vLLM refuses --speed" in command.screen()
    assert f"log {command.output}/logs/rollout-0.log" in command.screen()


def test_an_engine_that_refuses_the_job_after_its_first_step_is_started_again(tmp_path: Path) -> None:
    command = LocalCommand(tmp_path, job_object(), attempts={1: HOLD}, engine={2: 40})
    command.wait_for_steps(3)
    wait_until(command.engines, "the engine is there")
    os.kill(command.engines()[0]["pid"], signal.SIGKILL)
    said = "rollout-0 is started again in 5 s: vLLM refuses --speed"
    wait_until(lambda: said in command.screen(), "the second start of the engine has ended")
    command.interrupt()
    assert command.end() == 143
    assert command.checkpoint() == "step-000003"


def test_when_one_node_fails_all_start_again_and_the_cause_is_named_not_its_consequence(
    tmp_path: Path,
) -> None:
    plan = {1: {"steps": 3, "exit": 1, "message": "rank 0 met a NaN", "peer_exit": 75}}
    command = LocalCommand(tmp_path, job_object(trainer={"numNodes": 2}), attempts=plan)
    assert command.end() == 0
    assert "attempt 2 follows because: rank 0 met a NaN" in command.screen()
    assert sorted(path.name for path in (command.output / "logs").glob("trainer*")) == [
        "trainer-0.log",
        "trainer-1.log",
    ]


def test_a_directory_of_another_spec_is_refused_with_the_field(tmp_path: Path) -> None:
    assert LocalCommand(tmp_path, job_object()).end() == 0
    other = LocalCommand(tmp_path, job_object(algorithm={"steps": 9}))
    assert other.end() == 40
    assert "algorithm.steps was 8 and is now 9" in other.screen()


def test_the_number_of_engines_may_change_between_two_commands(tmp_path: Path) -> None:
    first = LocalCommand(tmp_path, job_object(), attempts={1: HOLD})
    first.wait_for_steps(3)
    first.interrupt()
    assert first.end() == 143
    assert LocalCommand(tmp_path, job_object(rollout={"replicas": 2})).end() == 0


def test_two_commands_cannot_share_a_directory(tmp_path: Path) -> None:
    first = LocalCommand(tmp_path, job_object(), attempts={1: HOLD})
    first.wait_for_steps(3)
    second = LocalCommand(tmp_path, job_object())
    assert second.process.wait(timeout=DEADLINE_SECONDS) == 40
    assert f"{first.output} is in use by process {first.process.pid}" in second.screen()
    first.interrupt()
    assert first.end() == 143


def test_a_finished_job_says_so_and_starts_nothing(tmp_path: Path) -> None:
    first = LocalCommand(tmp_path, job_object())
    assert first.end() == 0
    # the job may be done before its engine has begun
    num_engines = len(first.engines())
    again = LocalCommand(tmp_path, job_object())
    assert again.end() == 0
    assert "every step of this job is done" in again.screen()
    assert len(again.engines()) == num_engines


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"algorithm": {"steps": 0}}, "spec.algorithm.steps: Invalid value"),
        (
            {"trainer": {"resources": {"limits": {"nvidia.com/gpu": 1}}}},
            "spec.trainer.resources ask for 1 GPU, one for each training process and one for each worker",
        ),
        (
            {
                "engine": {"tensorParallelSize": 4, "pipelineParallelSize": 4},
                "rollout": {"replicas": 1, "nodesPerReplica": 2},
            },
            "an engine would have 16 workers, and on one machine vLLM joins at most 8 on CPU",
        ),
        ({"model": {"source": "pvc://models/x"}}, "--volume claim/models=DIRECTORY"),
        ({"dataset": {"source": "configmap://data/x.jsonl"}}, "--volume configmap/data=DIRECTORY"),
    ],
)
def test_what_cannot_run_here_is_refused_before_anything_starts(
    tmp_path: Path, spec: dict[str, object], sentence: str
) -> None:
    command = LocalCommand(tmp_path, job_object(**spec))
    assert command.end() == 40
    assert sentence in command.screen()
    assert command.engines() == []
