"""Whole trainer pods over FakeEngines: supervisor, ranks, gloo, checkpoints, reports. Some seconds each."""

import os
import signal
from pathlib import Path

import pytest
import torch
from fake_job import STEPS, job, learned, records, weights
from pod_builder import free_port
from safetensors.torch import load_file
from trainer_pod import TrainerPod
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_api.contract.learning_signal import StepsWithoutSignal
from grpo_api.contract.progress import TrainerState
from grpo_runtime.model.tiny import write_tiny_model

pytestmark = pytest.mark.processes


def test_every_step_is_reported_and_the_policy_moves(two_ranks: Path) -> None:
    assert [record.step for record in records(two_ranks)] == list(range(1, STEPS + 1))
    first, last = learned(two_ranks)[0], learned(two_ranks)[-1]
    assert last["num_tokens"] > first["num_tokens"] > 0
    assert last["reward"] > 0
    assert first["sampling/sampling_logp_difference/max"] < 1e-4
    assert any((two_ranks / "output" / "tensorboard").iterdir())
    assert f"step {STEPS}/{STEPS} reward 0." in (two_ranks / "log-1-0").read_text()
    prometheus = (two_ranks / "cache-1-0" / "run" / "metrics.prom").read_text()
    assert f'grpo_step{{grpojob="copy"}} {STEPS}.0' in prometheus


def test_the_final_model_is_what_transformers_loads(two_ranks: Path) -> None:
    folder = two_ranks / "output" / "model"
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in [folder, *folder.iterdir()])
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.vocab_size == len(tokenizer)


def test_only_the_newest_checkpoints_are_kept(two_ranks: Path) -> None:
    folder = two_ranks / "output" / "checkpoints"
    assert sorted(path.name for path in folder.glob("step-*")) == ["step-000004", "step-000006"]
    assert (folder / "LATEST").read_text() == "step-000006\n"


def test_one_rank_learns_what_two_ranks_learn(two_ranks: Path, tmp_path: Path) -> None:
    assert TrainerPod(tmp_path, job(num_ranks=1)).end()[0] == 0
    for one, two in zip(learned(tmp_path), learned(two_ranks), strict=True):
        # Adam hides a wrong factor in the gradient, its norm does not
        assert one == pytest.approx(two, abs=1e-6, rel=1e-5)
    others = weights(two_ranks)
    for name, tensor in weights(tmp_path).items():
        torch.testing.assert_close(tensor, others[name], atol=1e-6, rtol=1e-5)


def test_a_run_that_taught_nothing_ends_with_that_and_an_attempt_of_it_begins_with_that(
    tmp_path: Path,
) -> None:
    never = [{"name": "never", "builtin": "regex", "pattern": "[0-9]{9}"}]
    run = job(num_ranks=1, num_steps=2, rewards=never)
    for attempt in (1, 2):  # the other one finds every step done
        code, message = TrainerPod(tmp_path, run, attempt=attempt).end()
        assert code == 0 and message.progress is not None
        found = message.progress.no_learning_signal
        assert found == StepsWithoutSignal(step=2, equal_rewards=2, rewards="never")
    assert (tmp_path / "log-1-0").read_text().count("NoLearningSignal: nothing was learned from never") == 1
    assert "NoLearningSignal" in (tmp_path / "output" / "report.html").read_text()


def test_progress_says_that_rewards_are_waited_for_before_engines_are(tmp_path: Path) -> None:
    late = job(num_ranks=1, rewards=[{"name": "late", "function": "late_rewards:lengths"}])
    may_start = tmp_path / "may-start"
    environment = {"REWARDS_MAY_START": str(may_start), "PYTHONPATH": str(Path(__file__).parent)}
    trainer = TrainerPod(tmp_path, late, environment=environment)
    waiting = trainer.wait_until(lambda progress: progress.message == "starting the rewards late")
    # where the deadline of startup does not begin again, as it does while a checkpoint is read
    assert waiting.state is TrainerState.WAITING_FOR_ROLLOUT
    may_start.touch()
    assert trainer.end()[0] == 0


def test_a_run_that_is_stopped_and_killed_ends_with_the_same_bits(two_ranks: Path, tmp_path: Path) -> None:
    first = TrainerPod(tmp_path, job(), hang_at=3)
    first.wait_until(lambda progress: progress.step == 3)
    heartbeat = first.wait_until(lambda progress: progress.state == TrainerState.TRAINING).heartbeat
    first.wait_until(lambda progress: progress.heartbeat > heartbeat)  # also while it waits
    first.terminate()
    code, message = first.end()
    assert (code, message.reason) == (143, "Terminated")
    assert message.progress is not None
    assert (message.progress.step, message.progress.checkpoint_step) == (3, 3)

    second = TrainerPod(tmp_path, job(), attempt=2, hang_at=5)
    progress = second.wait_until(lambda progress: (progress.step, progress.checkpoint_step) == (5, 4))
    assert progress.resumed_from_step == 3
    second.kill_rank(1)
    code, message = second.end()
    assert (code, message.reason, message.rank) == (137, "Killed", 1)

    third = TrainerPod(tmp_path, job(), attempt=3)
    code, message = third.end()
    assert code == 0, message
    assert message.progress is not None
    assert message.progress.resumed_from_step == 4

    assert [record.attempt for record in records(tmp_path)] == [1, 1, 1, 2, 3, 3]
    assert learned(tmp_path) == learned(two_ranks)
    mine, others = weights(tmp_path), weights(two_ranks)
    assert mine.keys() == others.keys()
    assert all(torch.equal(mine[name], others[name]) for name in mine)


def test_evaluations_change_no_bit_of_a_run_that_is_stopped_and_goes_on(
    two_ranks: Path, tmp_path: Path
) -> None:
    measured = job(dataset={"source": "builtin://copy", "eval": {"everySteps": 2, "source": "builtin://add"}})
    first = TrainerPod(tmp_path, measured, hang_at=3)
    first.wait_until(lambda progress: progress.step == 3)
    first.terminate()
    assert first.end()[0] == 143
    code, message = TrainerPod(tmp_path, measured, attempt=2).end()
    assert code == 0, message

    found = [record.values for record in records(tmp_path)]
    assert [index + 1 for index, values in enumerate(found) if "eval/reward" in values] == [2, 4, 6]
    best, reward = (tmp_path / "output" / "checkpoints" / "BEST").read_text().split()
    rewards = {f"step-{step:06d}": found[step - 1]["eval/reward"] for step in (2, 4, 6)}
    assert (best, float(reward)) == max(rewards.items(), key=lambda item: item[1])
    assert (tmp_path / "output" / "checkpoints" / best).is_dir()
    mine, others = weights(tmp_path), weights(two_ranks)
    assert all(torch.equal(mine[name], others[name]) for name in mine)


def test_the_first_update_of_a_negative_weight_is_that_of_the_weight_1_turned_around(tmp_path: Path) -> None:
    first_step = {
        "steps": 1,
        "promptsPerStep": 8,
        "groupSize": 8,
        "optimizer": {"learningRate": 1e-3, "schedule": "constant", "warmupSteps": 0},
    }
    folders = {weight: tmp_path / str(weight) for weight in (1.0, -1.0)}
    pods = []
    for weight, folder in folders.items():
        rewards = [{"name": "copy", "builtin": "char_accuracy", "weight": weight}]
        pods.append(TrainerPod(folder, job(num_ranks=1, algorithm=first_step, rewards=rewards)))
    assert [pod.end()[0] for pod in pods] == [0, 0]

    (right,), (wrong,) = (learned(folder) for folder in folders.values())
    assert wrong["rewards/copy/mean"] == right["rewards/copy/mean"] > 0
    assert wrong["reward"] == -right["reward"]
    write_tiny_model(tmp_path / "initial")
    initial = load_file(tmp_path / "initial" / "model.safetensors")
    after_right, after_wrong = (weights(folder) for folder in folders.values())
    assert initial.keys() == after_right.keys() == after_wrong.keys()
    for name, before in initial.items():
        update = after_right[name] - before
        assert update.abs().max() > 5e-4, name
        # float32 rounds weights of about 1 to 6e-8
        torch.testing.assert_close(after_wrong[name] - before, -update, atol=2e-7, rtol=1e-3)


def test_a_wrong_reward_function_ends_with_40_and_names_it(tmp_path: Path) -> None:
    rewards = [{"name": "mine", "function": "no_such_module:score"}]
    code, message = TrainerPod(tmp_path, job(num_ranks=2, rewards=rewards)).end()
    assert (code, message.reason, message.rank) == (40, "UserError", 0)
    assert "no_such_module" in message.message


def test_a_reward_function_that_wants_another_column_ends_with_40_before_engines_are_asked_for(
    tmp_path: Path,
) -> None:
    rewards = [{"name": "mine", "function": "scripted_rewards:wants_a_column"}]
    here = {"PYTHONPATH": str(Path(__file__).parent)}
    pod = TrainerPod(tmp_path, job(num_ranks=1, rewards=rewards), environment=here)
    code, message = pod.end()
    assert (code, message.reason) == (40, "UserError")
    assert "reward mine does not fit this job: it needs solution, which no call has" in message.message
    assert message.progress is not None
    assert message.progress.message == "starting the rewards mine"


def test_a_run_that_fails_has_the_page_of_its_steps_and_the_error_that_ended_it(tmp_path: Path) -> None:
    rewards = [{"name": "mine", "function": "scripted_rewards:raises_after_two_steps"}]
    here = {"PYTHONPATH": str(Path(__file__).parent)}
    pod = TrainerPod(tmp_path, job(num_ranks=1, rewards=rewards), environment=here)
    code, message = pod.end()
    assert (code, message.reason) == (40, "UserError")
    assert "reward mine failed on 64 of 64 completions of step 3 (100%)" in message.message
    page = (tmp_path / "output" / "report.html").read_text()
    assert "raises_after_two_steps" in page


def test_two_pods_stop_together_when_one_is_asked_to(tmp_path: Path) -> None:
    run = job(trainer={"numNodes": 2, "processesPerNode": 1})
    rendezvous_port = free_port()
    first, second = (
        TrainerPod(tmp_path, run, node_index=index, hang_at=1, rendezvous_port=rendezvous_port)
        for index in (0, 1)
    )
    first.wait_until(lambda progress: progress.step == 1)
    second.terminate()
    assert second.end()[0] == 143
    code, message = first.end()
    assert (code, message.reason) == (143, "Terminated")
    assert message.progress is not None
    assert message.progress.checkpoint_step == 1
    assert second.progress() is None, "only pod 0 reports progress"


def test_a_bug_is_written_with_its_place_and_its_step(tmp_path: Path) -> None:
    code, message = TrainerPod(tmp_path, job(num_ranks=1), environment={"FAKE_BREAK_AT": "1"}).end()
    assert (code, message.reason) == (1, "UnexpectedError") and message.error is not None
    assert (message.error.type, message.error.step) == ("TypeError", 2)
    assert message.message == f"TypeError in {message.error.where}: unsupported"


@pytest.mark.matrix
def test_a_rank_that_is_stopped_is_told_with_where_it_is_and_training_goes_on_with_it(tmp_path: Path) -> None:
    trainer = TrainerPod(tmp_path, job(num_ranks=2, num_steps=400))
    trainer.wait_until(lambda progress: progress.step >= 2)
    stopped = trainer.ranks()[1]
    os.kill(stopped, signal.SIGSTOP)
    told = trainer.wait_until(lambda progress: "no training process has made progress" in progress.message)
    assert told.state is TrainerState.TRAINING
    assert "rank 1 is stopped (by SIGSTOP) while it " in told.message
    assert "; rank 0 " in told.message
    os.kill(stopped, signal.SIGCONT)
    trainer.wait_until(lambda progress: progress.step > told.step and progress.message == "")
    trainer.terminate()
    assert trainer.end()[0] == 143
    log = trainer.whole_log()
    assert "the stacks of those of this pod follow" in log and "in run_rank" in log
