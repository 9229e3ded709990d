"""Whole jobs over FakeEngines that begin with a checkpoint of another one."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_job import STEPS, job, learned, records, weights
from safetensors.torch import load_file
from trainer_pod import TrainerPod

from grpo_api.contract.progress import TerminationMessage
from grpo_api.contract.run_config import RunConfig

pytestmark = pytest.mark.processes

STOPPED = 3


def next_job(folder: Path, *, load: str = "Checkpoint", **spec: Any) -> RunConfig:
    """Another job that begins with what the one in `folder` has left."""
    resume = {"source": f"file://{folder}/output", "load": load}
    run = job(**{"num_ranks": 1, "resumeFrom": resume, **spec})
    return run.model_copy(update={"job": run.job.model_copy(update={"uid": "another", "name": "next"})})


def stop_at(step: int, pod: TrainerPod) -> TerminationMessage:
    pod.wait_until(lambda progress: progress.step == step)
    pod.terminate()
    code, message = pod.end()
    assert code == 143, message
    return message


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job on two ranks that was stopped after STOPPED steps."""
    folder = tmp_path_factory.mktemp("first")
    stop_at(STOPPED, TrainerPod(folder, job(), hang_at=STOPPED))
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def saved_weights(output: Path, *, step: int) -> dict[str, torch.Tensor]:
    return load_file(output / "checkpoints" / f"step-{step:06d}" / "model" / "model.safetensors")


def test_a_new_job_goes_on_with_the_same_bits_as_an_undisturbed_run(
    first: Path, two_ranks: Path, tmp_path: Path
) -> None:
    source = tmp_path / "first"
    shutil.copytree(first, source)
    before = files_of(source)
    run = next_job(source, num_ranks=2)
    begun = TrainerPod(tmp_path, run, hang_at=5)
    progress = begun.wait_until(lambda progress: progress.step == STOPPED)
    assert (progress.resumed_from_step, progress.loaded_step, progress.checkpoint_step) == (3, 3, None)
    message = stop_at(5, begun)
    assert message.progress is not None and message.progress.checkpoint_step == 5
    assert files_of(source) == before, "what the other job has left is only read"

    # from its own checkpoint on it needs the other job no more
    shutil.rmtree(source)
    code, message = TrainerPod(tmp_path, run, attempt=2).end()
    assert code == 0, message
    assert message.progress is not None
    assert (message.progress.resumed_from_step, message.progress.loaded_step) == (5, None)

    assert [record.step for record in records(tmp_path)] == [4, 5, 6]
    assert learned(tmp_path) == learned(two_ranks)[STOPPED:]
    mine, others = weights(tmp_path), weights(two_ranks)
    assert mine.keys() == others.keys()
    assert all(torch.equal(tensor, others[name]) for name, tensor in mine.items())


@pytest.mark.parametrize(("num_ranks", "strategy"), [(1, "DDP"), (2, "FSDP2")])
def test_another_strategy_or_number_of_ranks_goes_on_too(
    num_ranks: int, strategy: str, first: Path, two_ranks: Path, tmp_path: Path
) -> None:
    code, message = TrainerPod(tmp_path, next_job(first, num_ranks=num_ranks, strategy=strategy)).end()
    assert code == 0, message
    for name, tensor in weights(tmp_path).items():
        torch.testing.assert_close(tensor, weights(two_ranks)[name], atol=1e-6, rtol=1e-5)


def test_an_attempt_that_is_killed_before_it_saves_is_begun_again_with_the_same_checkpoint(
    first: Path, tmp_path: Path
) -> None:
    killed = TrainerPod(tmp_path, next_job(first), hang_at=STOPPED)
    killed.wait_until(lambda progress: progress.step == STOPPED)
    killed.kill_rank(0)
    assert killed.end()[0] == 137
    again = TrainerPod(tmp_path, next_job(first), attempt=2, hang_at=STOPPED)
    progress = again.wait_until(lambda progress: progress.step == STOPPED)
    assert (progress.loaded_step, progress.resumed_from_step) == (3, 3)
    again.terminate()
    assert again.end()[0] == 143


def test_weights_alone_begin_at_step_0_with_a_fresh_optimizer(first: Path, tmp_path: Path) -> None:
    still = {
        "steps": 1,
        "promptsPerStep": 4,
        "groupSize": 4,
        "seed": 77,  # the data and its order may be others
        "kl": {"beta": 0.1},
        "optimizer": {"learningRate": 1e-30, "weightDecay": 0, "schedule": "constant", "warmupSteps": 0},
    }
    run = next_job(first, load="Weights", algorithm=still, dataset={"source": "builtin://reverse"})
    pod = TrainerPod(tmp_path, run, hang_at=0)
    progress = pod.wait_until(lambda progress: progress.loaded_step is not None)
    assert (progress.step, progress.loaded_step, progress.resumed_from_step) == (0, STOPPED, None)
    pod.terminate()
    assert pod.end()[0] == 143
    code, message = TrainerPod(tmp_path, run, attempt=2).end()
    assert code == 0, message

    (step,) = records(tmp_path)
    assert step.step == 1
    assert step.values["kl"] > 1e-6, "the reference is model.source, and the policy is no longer that"
    own, theirs = weights(tmp_path), saved_weights(first / "output", step=STOPPED)
    assert own.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in own.items())
    moments = load_file(tmp_path / "output" / "checkpoints" / "step-000001" / "optimizer.safetensors")
    assert {float(tensor) for name, tensor in moments.items() if name.startswith("step/")} == {1.0}


REFUSED = {
    "another dataset": (
        {"dataset": {"source": "builtin://reverse"}},
        "resumeFrom: the dataset is not the one",
    ),
    "an adapter": (
        {"model": {"source": "builtin://tiny", "lora": {"rank": 4}}},
        "the checkpoint has a whole model, and the job asks for an adapter",
    ),
    "no step left": ({"num_steps": STOPPED}, "this job ends at step 3"),
    "no such place": (
        {"resumeFrom": {"source": "file:///nowhere/at/all"}},
        "there is no checkpoint at /nowhere/at/all",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_checkpoint_that_does_not_fit_ends_the_job_before_it_trains(
    what: str, first: Path, tmp_path: Path
) -> None:
    changes, says = REFUSED[what]
    code, message = TrainerPod(tmp_path, next_job(first, **changes)).end()
    assert (code, message.reason) == (40, "UserError")
    assert says in message.message
    assert not (tmp_path / "output" / "metrics.jsonl").exists()


def test_a_damaged_checkpoint_ends_the_job_with_42(first: Path, tmp_path: Path) -> None:
    harmed = tmp_path / "harmed"
    shutil.copytree(first, harmed)
    for folder in (harmed / "output" / "checkpoints").glob("step-*"):
        (folder / "state.json").write_text("{}")
    code, message = TrainerPod(tmp_path / "next", next_job(harmed)).end()
    assert (code, message.reason) == (42, "CheckpointCorrupt")
    assert "state.json is missing or differs from the manifest" in message.message


def test_the_steps_of_the_other_job_say_nothing_about_the_memory_of_this_one(
    first: Path, tmp_path: Path
) -> None:
    small_gpu = {"FAKE_STRATEGY": "small GPU", "FAKE_FULL_FROM": "1", "FAKE_ROOM_TOKENS": "20"}
    code, message = TrainerPod(tmp_path, next_job(first, num_ranks=2), environment=small_gpu).end()
    assert (code, message.reason, message.rank) == (40, "GPUOutOfMemory", 1)
    assert "before the first step is done" in message.message


def test_an_adapter_goes_on_in_a_new_job(tmp_path: Path) -> None:
    lora = {"model": {"source": "builtin://tiny", "lora": {"rank": 4}}}
    whole, first = tmp_path / "whole", tmp_path / "first"
    code, message = TrainerPod(whole, job(num_ranks=1, **lora)).end()
    assert code == 0, message
    stop_at(STOPPED, TrainerPod(first, job(num_ranks=1, **lora), hang_at=STOPPED))
    code, message = TrainerPod(tmp_path / "next", next_job(first, **lora)).end()
    assert code == 0, message
    assert learned(tmp_path / "next") == learned(whole)[STOPPED:]
    code, message = TrainerPod(tmp_path / "weights", next_job(first, load="Weights", **lora)).end()
    assert code == 0, message
    assert len(records(tmp_path / "weights")) == STEPS
    code, message = TrainerPod(tmp_path / "wrong", next_job(first, load="Weights")).end()
    assert code == 40 and "the checkpoint has an adapter, and the job asks for none" in message.message
