"""One process is rank 0 of 1: the learner without other ranks. Several ranks: test_trainer_pod.py."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_api.contract.mismatch import MISMATCH_METRIC
from grpo_api.resolve import resolve_algorithm
from grpo_api.v1alpha1.spec import AlgorithmSpec, Dtype, EntropySpec, ImportanceCorrectionSpec, OptimizerSpec
from grpo_runtime.algorithm.losses import compute_loss
from grpo_runtime.algorithm.types import Denominators, LossInputs, LossOptions
from grpo_runtime.errors import UserError
from grpo_runtime.model.load import load_policy
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.report.position import OwnPosition
from grpo_runtime.rollouts.interface import Rollout
from grpo_runtime.trainer.batch import Batch, make_batch
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.learner import Learner, LearnerState, state_after
from grpo_runtime.trainer.micro_batches import divide_groups
from grpo_runtime.trainer.policy import MASTER_DTYPE, Policy, PolicyWeights
from grpo_runtime.trainer.strategy.ddp import DDPStrategy
from grpo_runtime.trainer.strategy.interface import Strategy


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder)
    return folder


@dataclass(frozen=True)
class PolicyLearner:
    """A learner with the policy that it changes."""

    policy: Policy
    strategy: Strategy
    learner: Learner

    def update(self, batch: Batch, *, step: int) -> dict[str, float]:
        return self.learner.update(batch, step=step)


def make_learner(
    folder: Path,
    ranks: Ranks,
    *,
    dtype: Dtype = Dtype.FLOAT32,
    micro_batch_tokens: int = 1024,
    state: LearnerState | None = None,
    **algorithm: Any,
) -> PolicyLearner:
    spec = resolve_algorithm(
        AlgorithmSpec(steps=10, optimizer=OptimizerSpec(learning_rate=1e-3), **algorithm)
    )
    policy = Policy(
        load_policy(folder, dtype=MASTER_DTYPE),
        temperature=1.0,
        dtype=dtype,
        has_entropy_gradient=spec.has_entropy_bonus,
    )
    strategy = DDPStrategy(policy, optimizer=spec.optimizer, total_steps=spec.steps, ranks=ranks)
    learner = Learner(strategy, spec, micro_batch_tokens=micro_batch_tokens, ranks=ranks, state=state)
    return PolicyLearner(policy, strategy, learner)


def a_batch(learner: PolicyLearner) -> Batch:
    """Eight sequences of different lengths, scored by the learner's own policy."""
    completions = [tuple(range(10 + index, 13 + index + index % 3)) for index in range(8)]
    rollouts = [Rollout((7, 8), ids, (0.0,) * len(ids), (), True, "fake") for ids in completions]
    batch = make_batch(rollouts, group_sizes=[2] * 4, advantages=torch.linspace(-1, 1, 8), pad_id=0)
    with torch.no_grad():
        logprobs, _ = learner.policy(batch.token_ids, batch.loss_mask)
    return replace(batch, rollout_logprobs=logprobs)


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


@pytest.mark.parametrize("mode", ["truncate", "none"])
def test_engines_that_differ_from_the_trainer_are_told_also_where_nothing_corrects_for_them(
    ranks: Ranks, model_folder: Path, mode: str
) -> None:
    correction = ImportanceCorrectionSpec.from_object({"mode": mode})
    learner = make_learner(model_folder, ranks, importance_correction=correction)
    batch = a_batch(learner)
    batch = replace(batch, rollout_logprobs=batch.rollout_logprobs - 1.0)
    metrics = learner.update(batch, step=0)
    assert metrics[MISMATCH_METRIC] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("micro_batch_tokens", [1024, 20])
def test_the_mismatch_counts_tokens_of_the_current_version_only(
    ranks: Ranks, model_folder: Path, micro_batch_tokens: int
) -> None:
    learner = make_learner(model_folder, ranks, micro_batch_tokens=micro_batch_tokens)
    batch = a_batch(learner)
    is_stale = (torch.arange(batch.loss_mask.shape[1]) > 2).expand_as(batch.loss_mask)
    stale = replace(batch, rollout_logprobs=torch.where(is_stale, -7.0, batch.rollout_logprobs - 0.5))
    metrics = learner.update(replace(stale, is_current=~is_stale), step=0)
    assert metrics[MISMATCH_METRIC] == pytest.approx(0.5, abs=1e-4)
    assert metrics["sampling/mismatch_kl/k3"] > 1
    metrics = learner.update(replace(stale, is_current=torch.zeros_like(is_stale)), step=1)
    assert MISMATCH_METRIC not in metrics
    assert metrics["sampling/mismatch_kl/k3"] > 1


def test_micro_batches_change_nothing_but_the_padding(ranks: Ranks, model_folder: Path) -> None:
    whole, cut = (
        make_learner(model_folder, ranks, num_iterations=2, micro_batch_tokens=tokens) for tokens in (99, 20)
    )
    batch = a_batch(whole)
    expected, found = (dict(learner.update(batch, step=0)) for learner in (whole, cut))
    assert (expected.pop("batch/micro_batches"), found.pop("batch/micro_batches")) == (1, 3)
    assert expected.pop("batch/padding_share") > 0.1 > found.pop("batch/padding_share")
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert expected["loss"] != 0  # the second iteration is off policy


def test_each_minibatch_is_an_update_towards_the_policy_before_the_first(
    ranks: Ranks, model_folder: Path
) -> None:
    options: dict[str, Any] = {"prompts_per_step": 4, "group_size": 2, "minibatches": 2, "num_iterations": 2}
    learner, by_hand = (make_learner(model_folder, ranks, micro_batch_tokens=20, **options) for _ in "ab")
    batch = a_batch(learner)
    metrics = learner.update(batch, step=3)
    old, _ = by_hand.strategy.score_only(batch.token_ids, batch.loss_mask)
    minibatches = divide_groups([2] * 4, num_minibatches=2, run_seed=0, step=3)
    for rows in minibatches * 2:
        part = batch.part(rows)
        with by_hand.strategy.micro_batch(is_last=True):
            logprobs, _ = by_hand.strategy.score(part.token_ids, part.loss_mask)
            inputs = LossInputs(
                trainer_logprobs=logprobs,
                old_logprobs=old[list(rows), : logprobs.shape[1]],
                rollout_logprobs=part.rollout_logprobs,
                advantages=part.advantages,
                loss_mask=part.loss_mask,
            )
            loss = compute_loss(
                inputs, options=LossOptions(), denominators=Denominators.of_mask(part.loss_mask)
            ).loss
            by_hand.strategy.backward(loss)
        by_hand.strategy.optimizer_step(step=3)
    for mine, expected in zip(learner.policy.parameters(), by_hand.policy.parameters(), strict=True):
        torch.testing.assert_close(mine, expected, atol=1e-5, rtol=0)
    assert metrics["batch/micro_batches"] > 2
    assert metrics["clip_ratio/region_mean"] > 0, "the second update is on policy"


PROMPT, FIRST, SAID, SECOND = (7, 8), (10, 11, 12), (30, 31), (13, 14, 15, 16, 17)
"""A prompt, what the policy sampled, what a tool said, and what the policy sampled then."""


def a_sequence(prompt: tuple[int, ...], completion: tuple[int, ...]) -> Rollout:
    return Rollout(prompt, completion, (-4.0,) * len(completion), (), True, "fake")


def an_episode(*, is_cut: bool) -> Rollout:
    """In one sequence, or in two of which the second goes on from all of the first."""
    if is_cut:
        branch = a_sequence((*PROMPT, *FIRST, *SAID), SECOND)
        return replace(a_sequence(PROMPT, FIRST), branches=(branch,))
    mask = (True,) * len(FIRST) + (False,) * len(SAID) + (True,) * len(SECOND)
    return replace(a_sequence(PROMPT, (*FIRST, *SAID, *SECOND)), loss_mask=mask)


@pytest.mark.parametrize("micro_batch_tokens", [1024, 12])
def test_an_episode_that_is_cut_teaches_what_the_whole_one_does(
    ranks: Ranks, model_folder: Path, micro_batch_tokens: int
) -> None:
    options: dict[str, Any] = {"prompts_per_step": 2, "group_size": 2, "minibatches": 2, "num_iterations": 2}
    learners, found = [], []
    for is_cut, tokens in ((False, 1024), (True, micro_batch_tokens)):
        learner = make_learner(model_folder, ranks, micro_batch_tokens=tokens, **options)
        others = [a_sequence((9,), tuple(range(40 + index, 44 + index))) for index in range(3)]
        samples = [others[0], an_episode(is_cut=is_cut), *others[1:]]
        advantages = torch.tensor([-1.0, 1.0, 0.5, -0.5])
        batch = make_batch(samples, group_sizes=[2, 2], advantages=advantages, pad_id=0)
        found.append(learner.update(batch, step=0))
        learners.append(learner)
    whole, cut = found
    assert len(batch.advantages) == 5
    assert cut["batch/micro_batches"] == (3 if micro_batch_tokens == 12 else 2)
    for name in ("loss", "grad_norm", "entropy"):
        assert cut[name] == pytest.approx(whole[name], rel=1e-4, abs=1e-6)
    expected, mine = ([*learner.policy.parameters()] for learner in learners)
    for one, other in zip(mine, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


def test_a_bonus_keeps_the_entropy_up(ranks: Ranks, model_folder: Path) -> None:
    found = {}
    for coefficient in (0.0, 2.0):
        learner = make_learner(model_folder, ranks, entropy=EntropySpec(coefficient=coefficient))
        batch = a_batch(learner)
        found[coefficient] = [learner.update(batch, step=step) for step in range(6)]
    plain, held = found[0.0], found[2.0]
    assert held[0]["entropy"] == plain[0]["entropy"]
    assert held[-1]["entropy"] > plain[-1]["entropy"] + 0.001
    assert {metrics["entropy_coef"] for metrics in held} == {2.0}
    assert not any("entropy_coef" in metrics for metrics in plain)


def test_a_bonus_with_a_target_begins_after_a_step_below_it_and_its_coefficient_survives_a_resume(
    ranks: Ranks, model_folder: Path
) -> None:
    entropy = EntropySpec(coefficient=0.1, target=50, delta=0.25)
    learner = make_learner(model_folder, ranks, entropy=entropy)
    batch = a_batch(learner)
    found = [learner.update(batch, step=step)["entropy_coef"] for step in range(3)]
    # TRL applies the coefficient of the update before
    assert found == pytest.approx([0.0, 0.35, 0.6])
    assert learner.learner.state.entropy_coefficient == pytest.approx(0.85)
    resumed = make_learner(model_folder, ranks, entropy=entropy, state=learner.learner.state)
    assert resumed.update(batch, step=3)["entropy_coef"] == pytest.approx(0.85)
    above = make_learner(
        model_folder, ranks, entropy=EntropySpec(coefficient=0.5, target=0.001), state=learner.learner.state
    )
    above.update(batch, step=0)
    assert above.learner.state.is_entropy_low is False
    assert above.update(batch, step=1)["entropy_coef"] == 0


def test_bfloat16_still_learns_at_a_small_learning_rate(ranks: Ranks, model_folder: Path) -> None:
    learner = make_learner(model_folder, ranks, dtype=Dtype.BFLOAT16)
    before = {name: tensor.clone() for name, tensor in learner.policy.model.named_parameters()}
    metrics = learner.update(a_batch(learner), step=0)
    assert metrics["grad_norm"] > 0
    for name, tensor in learner.policy.model.named_parameters():
        assert tensor.dtype == torch.float32
        assert not torch.equal(tensor, before[name])
    assert all(spec.dtype == torch.bfloat16 for spec in PolicyWeights(learner.policy).layout())


def poisoned(batch: Batch) -> Batch:
    """The same with an infinite loss."""
    return replace(batch, advantages=batch.advantages * torch.inf)


def test_an_update_whose_gradient_is_not_finite_is_left_out_and_the_next_one_is_as_if_it_had_not_been(
    ranks: Ranks, model_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learner, other = (make_learner(model_folder, ranks, num_iterations=2) for _ in range(2))
    batch = a_batch(learner)
    for each in (learner, other):
        each.update(batch, step=0)
    before = {name: tensor.clone() for name, tensor in learner.policy.model.named_parameters()}
    found = learner.update(poisoned(batch), step=1)
    assert all(tensor.equal(before[name]) for name, tensor in learner.policy.model.named_parameters())
    assert found["skipped_updates"] == 2
    # no report can hold a number that is none
    assert not {"grad_norm", "loss"} & set(found)
    assert "step 2: the gradient of 2 of 2 updates is not finite" in caplog.text
    expected = other.update(batch, step=2)
    assert learner.update(batch, step=2) == expected
    assert expected["skipped_updates"] == 0 < expected["grad_norm"]


def test_steps_in_a_row_without_a_finite_gradient_end_the_run_also_over_a_resume(
    ranks: Ranks, model_folder: Path
) -> None:
    learner = make_learner(model_folder, ranks)
    batch = a_batch(learner)
    for step in range(5):
        # every third is good
        learner.update(batch if step % 3 == 2 else poisoned(batch), step=step)
    assert learner.learner.state == LearnerState(skipped_steps=2)
    resumed = make_learner(model_folder, ranks, state=learner.learner.state)
    with pytest.raises(UserError, match="the gradients of the last 3 steps, up to step 6, are not") as raised:
        resumed.update(poisoned(batch), step=5)
    assert "lower algorithm.optimizer.learningRate" in str(raised.value)
    assert raised.value.exit_code == 40


def test_a_job_may_say_that_one_step_without_a_finite_gradient_is_enough(
    ranks: Ranks, model_folder: Path
) -> None:
    learner = make_learner(model_folder, ranks, max_non_finite_steps=1)
    with pytest.raises(UserError, match=r"the gradient of step 1 is not finite \(.*maxNonFiniteSteps is 1"):
        learner.update(poisoned(a_batch(learner)), step=0)


class TellingPosition(OwnPosition):
    """Remembers what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, str]] = []
        self.num_work = 0

    def at(self, what: str, detail: str = "", *, work: int = 0) -> None:
        self.told.append((what, detail))
        self.num_work += work


def test_each_micro_batch_is_told_and_is_a_sign_of_life(
    model_folder: Path, ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    position = TellingPosition()
    monkeypatch.setattr(ranks, "position", position)
    learner = make_learner(model_folder, ranks, micro_batch_tokens=20, num_iterations=2)
    metrics = learner.update(a_batch(learner), step=0)
    num = int(metrics["batch/micro_batches"])
    gradients = [("computes gradients", f"micro-batch {index + 1} of {num}") for index in range(num)]
    one_iteration = [*gradients, ("updates the weights", "")]
    assert num > 1
    assert position.told == [*one_iteration, *one_iteration, ("adds up the metrics of all ranks", "")]
    assert position.num_work >= 2 * (num - 1)


SAVED = {"skipped_steps": 3, "entropy_coefficient": 0.2, "is_entropy_low": True}
FOLLOWS = {"coefficient": 0.01, "target": 0.3, "delta": 0.001, "minCoefficient": 0.001, "maxCoefficient": 0.5}


def learner_state(skipped_steps: int, coefficient: float, is_low: bool) -> LearnerState:
    return LearnerState(skipped_steps=skipped_steps, entropy_coefficient=coefficient, is_entropy_low=is_low)


def algorithm_with(entropy: dict[str, float] | None) -> AlgorithmSpec:
    return resolve_algorithm(
        AlgorithmSpec.from_object({"steps": 1} | ({"entropy": entropy} if entropy else {}))
    )


def test_the_same_run_goes_on_where_it_stood() -> None:
    assert state_after(algorithm_with(FOLLOWS), SAVED, is_of_other_run=False) == learner_state(3, 0.2, True)


def test_of_another_run_only_a_coefficient_that_follows_a_target_is_taken() -> None:
    def taken(entropy: dict[str, float] | None, saved: dict[str, float]) -> LearnerState:
        return state_after(algorithm_with(entropy), saved, is_of_other_run=True)

    assert taken(FOLLOWS, SAVED) == learner_state(0, 0.2, False)
    assert taken(FOLLOWS, {"entropy_coefficient": 0.0}) == learner_state(0, 0.01, False)
    assert taken({"coefficient": 0.01}, SAVED) == learner_state(0, 0.01, False)
    assert taken(None, SAVED) == learner_state(0, 0.0, False)
