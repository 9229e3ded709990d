"""Two real ranks with several micro-batches each learn what one process learns from the whole batch at once,
from the state of rank 0.

The reference is written without ranks, micro-batches and DDP.
"""

import json
from pathlib import Path

import pytest
import torch
from learner_ranks import NUM_SEQUENCES, NUM_STEPS, SPEC, WORLD_SIZE, a_batch, a_policy
from pod_builder import free_port
from rank_script import run_ranks
from safetensors import safe_open
from safetensors.torch import load_file

from grpo_runtime.algorithm.losses import compute_loss
from grpo_runtime.algorithm.types import Denominators, LossInputs
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.trainer.learner import loss_options
from grpo_runtime.trainer.optimizer import PolicyOptimizer

SCRIPT = Path(__file__).with_name("learner_ranks.py")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder)
    return folder


@pytest.fixture(scope="module")
def results(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks learned from each batch."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(SCRIPT, str(free_port()), str(model_folder), str(folder))
    return folder


def one_process(model_folder: Path, num_sequences: int) -> tuple[dict[str, torch.Tensor], list[float]]:
    """The weights, and the gradient norm of the last iteration of each step."""
    policy = a_policy(model_folder)
    optimizer = PolicyOptimizer(policy, SPEC.optimizer, total_steps=SPEC.steps)
    batch = a_batch(num_sequences)
    norms = []
    for step in range(NUM_STEPS):
        old = None
        for _ in range(SPEC.num_iterations):
            logprobs, entropies = policy(batch.token_ids, batch.loss_mask)
            inputs = LossInputs(
                trainer_logprobs=logprobs,
                old_logprobs=old,
                rollout_logprobs=batch.rollout_logprobs,
                advantages=batch.advantages,
                loss_mask=batch.loss_mask,
                entropies=entropies,
            )
            denominators = Denominators.of_mask(batch.loss_mask)
            compute_loss(inputs, options=loss_options(SPEC), denominators=denominators).loss.backward()
            norm, _ = optimizer.step(step=step)
            old = logprobs.detach() if old is None else old
        norms.append(norm)
    return dict(policy.model.named_parameters()), norms


@pytest.mark.parametrize("num_sequences", NUM_SEQUENCES)
def test_micro_batches_of_two_ranks_add_up_to_the_whole_batch(
    num_sequences: int, results: Path, model_folder: Path
) -> None:
    expected, norms = one_process(model_folder, num_sequences)
    for rank in range(WORLD_SIZE):
        with safe_open(results / f"{rank}-{num_sequences}.safetensors", framework="pt") as found:
            metrics = json.loads(found.metadata()["metrics"])
            # Adam hides a wrong factor in the gradient, its norm does not
            assert [step["grad_norm"] for step in metrics] == pytest.approx(norms, rel=1e-4)
            for name, tensor in expected.items():
                # a hundredth of one update
                torch.testing.assert_close(found.get_tensor(name), tensor, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("num_sequences", NUM_SEQUENCES)
def test_both_ranks_hold_the_same_bits(num_sequences: int, results: Path) -> None:
    first, second = (load_file(results / f"{rank}-{num_sequences}.safetensors") for rank in range(WORLD_SIZE))
    assert all(tensor.equal(second[name]) for name, tensor in first.items())
