"""The reference policy of a KL penalty, on one rank, and each loss however its step is cut."""

from pathlib import Path
from typing import Any

import pytest
import torch
from scored_batch import a_batch

from grpo_api.contract.run_config import ResolvedLora
from grpo_api.resolve import resolve_algorithm
from grpo_api.v1alpha1.spec import AlgorithmSpec, Dtype, LossType
from grpo_runtime.algorithm.losses import compute_loss
from grpo_runtime.algorithm.types import Denominators, LossInputs
from grpo_runtime.model.load import load_policy
from grpo_runtime.model.lora import add_adapter, without_adapter
from grpo_runtime.model.source import LocalModel
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.trainer.algorithm_options import loss_options
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.learner import Learner
from grpo_runtime.trainer.policy import MASTER_DTYPE, Policy
from grpo_runtime.trainer.reference import copy_of, make_reference
from grpo_runtime.trainer.strategy.interface import Strategy
from grpo_runtime.trainer.strategy.registry import STRATEGIES

MAX_TOKENS = 9
BUDGETS = (99, 16)
"""All sequences at once, and two at a time."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder)
    return folder


def spec(**changes: Any) -> AlgorithmSpec:
    optimizer = {"learningRate": 0.001}
    return resolve_algorithm(AlgorithmSpec.from_object({"steps": 10, "optimizer": optimizer, **changes}))


def make(
    folder: Path,
    ranks: Ranks,
    algorithm: AlgorithmSpec,
    *,
    strategy: str = "DDP",
    has_adapter: bool = False,
    budget: int = 99,
) -> tuple[Strategy, Learner]:
    """A learner of the tiny model."""
    model = load_policy(folder, dtype=MASTER_DTYPE)
    if has_adapter:
        add_adapter(
            model, ResolvedLora(rank=4, alpha=8), seed=0, origin=LocalModel(folder, "builtin://tiny", None)
        )
    copied = copy_of(model, dtype=torch.float32) if algorithm.has_reference else None
    made = STRATEGIES[strategy](
        Policy(
            model,
            temperature=1.0,
            dtype=Dtype.FLOAT32,
            has_entropy_gradient=algorithm.has_entropy_bonus,
        ),
        optimizer=algorithm.optimizer,
        total_steps=algorithm.steps,
        ranks=ranks,
    )
    reference = None
    if algorithm.has_reference:
        second = None if copied is None else Policy(copied, temperature=1.0, dtype=Dtype.FLOAT32)
        reference = make_reference(second, model=model, strategy=made, sync=algorithm.ref_sync)
    made.load(None)
    learner = Learner(
        made,
        algorithm,
        micro_batch_tokens=budget,
        ranks=ranks,
        reference=reference,
        max_completion_length=MAX_TOKENS,
    )
    return made, learner


def weights_of(strategy: Strategy) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for _, tensor in strategy.model_state()])


@pytest.mark.parametrize("has_adapter", [False, True])
@pytest.mark.parametrize("strategy", ["DDP", "FSDP2"])
def test_the_penalty_is_towards_the_model_that_training_began_with(
    folder: Path, ranks: Ranks, strategy: str, has_adapter: bool
) -> None:
    chosen = spec(kl={"beta": 0.5, "biasCorrection": False})
    made, learner = make(folder, ranks, chosen, strategy=strategy, has_adapter=has_adapter)
    batch = a_batch(made)
    start, _ = made.score_only(batch.token_ids, batch.loss_mask)
    assert learner.update(batch, step=0)["kl"] == pytest.approx(0, abs=1e-6)
    for step in range(1, 4):
        learner.update(batch, step=step)
    now, _ = made.score_only(batch.token_ids, batch.loss_mask)
    expected = compute_loss(
        LossInputs(
            trainer_logprobs=now,
            ref_logprobs=start,
            rollout_logprobs=batch.rollout_logprobs,
            advantages=batch.advantages,
            loss_mask=batch.loss_mask,
        ),
        options=loss_options(chosen),
        denominators=Denominators.of_mask(batch.loss_mask),
    ).metrics["kl"]
    divergence = float(expected.total / expected.count)
    assert divergence > 1e-4
    assert learner.update(batch, step=4)["kl"] == pytest.approx(divergence, rel=1e-4)


@pytest.mark.parametrize("strategy", ["DDP", "FSDP2"])
def test_a_reference_may_follow_the_policy_every_so_many_steps(
    folder: Path, ranks: Ranks, strategy: str
) -> None:
    chosen = spec(kl={"beta": 0.01, "refSync": {"everySteps": 2, "mix": 0.25}})
    made, learner = make(folder, ranks, chosen, strategy=strategy)
    batch = a_batch(made)
    reference = learner._reference
    assert reference is not None
    start = {name: tensor.clone() for name, tensor in reference.state()}
    learner.update(batch, step=0)
    assert all(tensor.equal(start[name]) for name, tensor in reference.state())
    learner.update(batch, step=1)
    now = dict(made.model_state())
    followed = {name: tensor.clone() for name, tensor in reference.state()}
    assert followed and followed.keys() <= now.keys()
    for name, tensor in followed.items():
        torch.testing.assert_close(tensor, 0.25 * now[name] + 0.75 * start[name])
        assert not tensor.equal(start[name])
    # what the penalty is towards
    logprobs = reference.logprobs(batch.token_ids, batch.loss_mask)
    again, other = make(folder, ranks, chosen, strategy=strategy)
    assert other._reference is not None
    other._reference.load(followed)
    assert other._reference.logprobs(batch.token_ids, batch.loss_mask).equal(logprobs)
    assert not again.score_only(batch.token_ids, batch.loss_mask)[0].equal(logprobs)


def test_a_reference_that_takes_all_of_the_policy_has_its_bits(folder: Path, ranks: Ranks) -> None:
    made, learner = make(folder, ranks, spec(kl={"beta": 0.01, "refSync": {"everySteps": 1, "mix": 1}}))
    batch = a_batch(made)
    learner.update(batch, step=0)
    assert learner.update(batch, step=1)["kl"] == pytest.approx(0, abs=1e-7)


def test_a_penalty_holds_the_policy_back(folder: Path, ranks: Ranks) -> None:
    found = {}
    for beta in (0.0, 5.0):
        made, learner = make(folder, ranks, spec(kl={"beta": beta}))
        before = weights_of(made).clone()
        batch = a_batch(made)
        start, _ = made.score_only(batch.token_ids, batch.loss_mask)
        for step in range(8):
            learner.update(batch, step=step)
        now, _ = made.score_only(batch.token_ids, batch.loss_mask)
        found[beta] = float((now - start).abs().sum())
        assert not weights_of(made).equal(before)
    assert found[5.0] < 0.7 * found[0.0]


def test_without_a_penalty_there_is_no_reference_policy(folder: Path, ranks: Ranks) -> None:
    made, learner = make(folder, ranks, spec())
    assert "kl" not in learner.update(a_batch(made), step=0)


def test_a_model_without_its_adapter_is_that_which_it_was_put_on(folder: Path) -> None:
    plain, model = (load_policy(folder, dtype=MASTER_DTYPE) for _ in range(2))
    add_adapter(
        model, ResolvedLora(rank=4, alpha=8), seed=0, origin=LocalModel(folder, "builtin://tiny", None)
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.fill_(0.1)
    ids = torch.tensor([[3, 5, 8, 13]])
    changed = model(ids).logits
    with without_adapter(model):
        assert model(ids).logits.equal(plain(ids).logits)
    assert model(ids).logits.equal(changed)
    assert not changed.equal(plain(ids).logits)


@pytest.mark.parametrize(
    "changes",
    [
        *({"lossType": loss.value} for loss in LossType if loss is not LossType.BNPO),
        {"lossType": "grpo", "ratioLevel": "sequence"},
        {"importanceCorrection": {"level": "sequence", "mode": "mask", "floor": 0.1, "cap": 9}},
        {"topEntropyQuantile": 0.3},
        {"offPolicyThreshold": 0.0001},
        {"delta": 1.5, "dualClip": 2},
        {"kl": {"beta": 0.1}},
        {"promptsPerStep": 4, "groupSize": 2, "minibatches": 2},
        {"lossType": "grpo", "entropy": {"coefficient": 0.5}},
    ],
    ids=str,
)
def test_a_step_is_the_same_however_it_is_cut(folder: Path, ranks: Ranks, changes: dict[str, Any]) -> None:
    ends, metrics = [], []
    for budget in BUDGETS:
        made, learner = make(folder, ranks, spec(numIterations=2, **changes), budget=budget)
        batch = a_batch(made)
        metrics.append([learner.update(batch, step=step) for step in range(2)][-1])
        ends.append(weights_of(made))
    # with minibatches in each of them
    num_updates = changes.get("minibatches", 1)
    whole, cut = (found["batch/micro_batches"] for found in metrics)
    assert whole == num_updates < 5 <= cut
    assert (ends[0] - ends[1]).abs().max() <= 1e-5
    # all but how it was cut
    first, second = (
        {name: value for name, value in found.items() if not name.startswith("batch/")} for found in metrics
    )
    assert first == pytest.approx(second, rel=1e-3, abs=1e-5)


def test_bnpo_is_the_mean_over_its_micro_batches_so_that_it_depends_on_the_cut(
    folder: Path, ranks: Ranks
) -> None:
    ends = []
    for budget in BUDGETS:
        made, learner = make(folder, ranks, spec(lossType="bnpo"), budget=budget)
        found = learner.update(a_batch(made), step=0)
        ends.append((found["grad_norm"], found["batch/micro_batches"]))
    assert [num for _, num in ends] == [1, 5]
    assert abs(ends[0][0] - ends[1][0]) > 1e-3 * ends[0][0]
