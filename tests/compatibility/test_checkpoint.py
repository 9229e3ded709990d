"""A checkpoint of 0.1.0: found, checked, restored, and trained on with the same numbers."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from grpo_api.v1alpha1.spec import Dtype, OptimizerSpec, Schedule
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.data.sampler import PromptSampler
from grpo_runtime.errors import SupersededError
from grpo_runtime.model.load import load_policy, load_tokenizer
from grpo_runtime.trainer.checkpoint.contents import RunState, read_run_state, read_training_state
from grpo_runtime.trainer.checkpoint.store import CheckpointStore
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.policy import MASTER_DTYPE, Policy
from grpo_runtime.trainer.strategy.ddp import DDPStrategy

from .released import JOB_UID, RUNTIME

TOKENS = torch.tensor([[5, 9, 13, 17, 21, 25]])
ALL = torch.ones((1, 5), dtype=torch.bool)
LOGPROBS = [-4.556031, -4.522786, -4.589273, -4.596709, -4.634716]
"""Of TOKENS under the checkpoint's policy."""
LOGPROBS_AFTER_A_STEP = [-4.550049, -4.520885, -4.587325, -4.593484, -4.630043]
"""After one more optimizer step, towards TOKENS, with the moments of the checkpoint."""
PROMPTS = tuple(
    Prompt(index=index, content=f"{letter}=", columns={"answer": letter * 4})
    for index, letter in enumerate("abcde")
)
"""The dataset of the run that wrote it."""
OPTIMIZER = OptimizerSpec(learning_rate=1e-2, schedule=Schedule.COSINE, warmup_steps=1, weight_decay=0.01)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy: who claims the checkpoints leaves a file beside them."""
    copied: Path = shutil.copytree(RUNTIME / "checkpoints", tmp_path / "checkpoints")
    return copied


def store(folder: Path, *, attempt: int) -> CheckpointStore:
    return CheckpointStore(folder, job_uid=JOB_UID, attempt=attempt, keep=2)


def blank_policy(folder: Path) -> Policy:
    """The policy with other weights, which a restore replaces."""
    policy = Policy(load_policy(folder, dtype=MASTER_DTYPE), temperature=0.9, dtype=Dtype.FLOAT32)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.fill_(0.5)
    return policy


def resumed(folder: Path, ranks: Ranks) -> tuple[DDPStrategy, RunState]:
    """A strategy that has loaded the checkpoint of step 7, and where its run stood."""
    checkpoint = folder / "step-000007"
    policy = blank_policy(checkpoint / "model")
    strategy = DDPStrategy(policy, optimizer=OPTIMIZER, total_steps=8, ranks=ranks)
    tensors, state = read_training_state(checkpoint), read_run_state(checkpoint)
    strategy.load(tensors)
    return strategy, state


def test_the_newest_checkpoint_is_found_whole(folder: Path) -> None:
    target = store(folder, attempt=3)
    target.begin_attempt()
    found = target.newest()
    assert found is not None
    path, manifest = found
    assert (path.name, manifest.step, manifest.attempt, manifest.job_uid) == ("step-000007", 7, 2, JOB_UID)
    assert set(manifest.files) == {
        "optimizer.safetensors",
        "state.json",
        *(f"model/{name}" for name in ("config.json", "generation_config.json", "model.safetensors")),
        *(f"model/{name}" for name in ("tokenizer.json", "tokenizer_config.json")),
    }
    assert not list(folder.glob("*.damaged*"))


def test_an_attempt_that_0_1_0_fenced_off_is_still_refused(folder: Path) -> None:
    with pytest.raises(SupersededError, match="attempt 2 has begun"):
        store(folder, attempt=1).begin_attempt()


def test_a_resume_has_its_weights_its_moments_and_its_place_in_the_data(folder: Path, ranks: Ranks) -> None:
    checkpoint = folder / "step-000007"
    strategy, state = resumed(folder, ranks)
    assert (state.step, state.num_tokens, state.stale_samples) == (7, 126, 1)
    saved = load_file(checkpoint / "model" / "model.safetensors")
    assert all(tensor.equal(saved[name]) for name, tensor in strategy.policy.model.named_parameters())
    moments = load_file(checkpoint / "optimizer.safetensors")
    assert {name for name, _ in strategy.optimizer_state()} == set(moments)
    assert all(tensor.equal(moments[name]) for name, tensor in strategy.optimizer_state())
    assert all(tensor == 7 for name, tensor in strategy.optimizer_state() if name.startswith("step/"))

    assert state.sampler is not None
    sampler = PromptSampler(PROMPTS, seed=42, is_shuffled=True)
    sampler.load_state_dict(state.sampler)
    uninterrupted = PromptSampler(PROMPTS, seed=42, is_shuffled=True)
    uninterrupted.next_prompts(2 * 7)
    assert sampler.next_prompts(9) == uninterrupted.next_prompts(9)


def test_a_resumed_policy_computes_and_learns_the_same_numbers(folder: Path, ranks: Ranks) -> None:
    strategy, state = resumed(folder, ranks)
    with strategy.micro_batch(is_last=True):
        logprobs, _ = strategy.score(TOKENS, ALL)
        assert logprobs[0].tolist() == pytest.approx(LOGPROBS, abs=1e-5)
        strategy.backward(-logprobs.sum())
    strategy.optimizer_step(step=state.step)
    assert strategy.policy(TOKENS, ALL)[0][0].tolist() == pytest.approx(LOGPROBS_AFTER_A_STEP, abs=1e-5)


def test_the_model_of_a_checkpoint_is_a_hugging_face_directory(folder: Path) -> None:
    tokenizer = load_tokenizer(folder / "step-000007" / "model")
    assert tokenizer.decode(tokenizer("a=").input_ids) == "a="
