"""One process is rank 0 of 1: the learner without other ranks. Several ranks: test_trainer_pod.py."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from grpo_api.v1alpha1.spec import AlgorithmSpec, Dtype, OptimizerSpec
from grpo_runtime.errors import UserError
from grpo_runtime.model.load import load_policy
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.rollout.interface import Rollout
from grpo_runtime.trainer import learner as learner_module
from grpo_runtime.trainer.batch import Batch, make_batch
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.learner import Learner
from grpo_runtime.trainer.policy import MASTER_DTYPE, Policy, PolicyWeights
from grpo_runtime.trainer.strategy.ddp import DDPStrategy


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder)
    return folder


@dataclass(frozen=True)
class PolicyLearner:
    """A learner with the policy that it changes."""

    policy: Policy
    learner: Learner

    def update(self, batch: Batch, *, step: int) -> dict[str, float]:
        return self.learner.update(batch, step=step)


def make_learner(
    folder: Path, ranks: Ranks, *, num_iterations: int = 1, dtype: Dtype = Dtype.FLOAT32
) -> PolicyLearner:
    spec = AlgorithmSpec(steps=10, num_iterations=num_iterations, optimizer=OptimizerSpec(learning_rate=1e-3))
    policy = Policy(load_policy(folder, dtype=MASTER_DTYPE), temperature=1.0, dtype=dtype)
    strategy = DDPStrategy(policy, optimizer=spec.optimizer, total_steps=spec.steps, ranks=ranks)
    return PolicyLearner(policy, Learner(strategy, spec, ranks=ranks))


def a_batch(learner: PolicyLearner) -> Batch:
    """Eight sequences of different lengths, scored by the learner's own policy."""
    completions = [tuple(range(10 + index, 13 + index + index % 3)) for index in range(8)]
    rollouts = [Rollout((7, 8), ids, (0.0,) * len(ids), (), True, "fake") for ids in completions]
    batch = make_batch(rollouts, advantages=torch.linspace(-1, 1, 8), pad_id=0)
    with torch.no_grad():
        logprobs, _ = learner.policy(batch.token_ids, batch.loss_mask)
    return Batch(batch.token_ids, batch.loss_mask, logprobs, batch.advantages)


def test_training_raises_what_had_an_advantage_and_lowers_the_rest(ranks: Ranks, model_folder: Path) -> None:
    learner = make_learner(model_folder, ranks)
    batch = a_batch(learner)
    for step in range(5):
        metrics = learner.update(batch, step=step)
    with torch.no_grad():
        after, _ = learner.policy(batch.token_ids, batch.loss_mask)
    change = torch.where(batch.loss_mask, after - batch.rollout_logprobs, 0.0).sum(1)
    assert change[0] < 0 < change[-1]
    assert metrics["sampling/importance_sampling_ratio/max"] > 1


def test_micro_batches_change_nothing(
    ranks: Ranks, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = (make_learner(model_folder, ranks, num_iterations=2) for _ in range(2))
    batch = a_batch(whole)
    expected = whole.update(batch, step=0)
    monkeypatch.setattr(learner_module, "MAX_LOGITS", 3 * batch.token_ids.shape[1] * 99)
    found = cut.update(batch, step=0)
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert expected["loss"] != 0  # the second iteration is off policy


def test_bfloat16_still_learns_at_a_small_learning_rate(ranks: Ranks, model_folder: Path) -> None:
    learner = make_learner(model_folder, ranks, dtype=Dtype.BFLOAT16)
    before = {name: tensor.clone() for name, tensor in learner.policy.model.named_parameters()}
    metrics = learner.update(a_batch(learner), step=0)
    assert metrics["grad_norm"] > 0
    for name, tensor in learner.policy.model.named_parameters():
        assert tensor.dtype == torch.float32
        assert not torch.equal(tensor, before[name])
    assert all(spec.dtype == torch.bfloat16 for spec in PolicyWeights(learner.policy).layout())


def test_a_gradient_that_is_not_finite_ends_the_run_before_it_reaches_the_weights(
    ranks: Ranks, model_folder: Path
) -> None:
    learner = make_learner(model_folder, ranks)
    batch = a_batch(learner)
    before = {name: tensor.clone() for name, tensor in learner.policy.model.named_parameters()}
    poisoned = Batch(batch.token_ids, batch.loss_mask, batch.rollout_logprobs, batch.advantages * torch.inf)
    with pytest.raises(UserError, match="gradient of step 4 is not finite"):
        learner.update(poisoned, step=3)
    assert all(tensor.equal(before[name]) for name, tensor in learner.policy.model.named_parameters())
