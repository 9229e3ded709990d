"""The schedules against transformers', and whole steps against torch's AdamW with the numbers of the spec."""

import copy
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import get_scheduler

from grpo_api.v1alpha1.spec import OptimizerSpec, Schedule
from grpo_bench.live_tensors import LiveTensors
from grpo_runtime.trainer.optimizer import PolicyOptimizer, learning_rate

TRANSFORMERS_NAMES = {
    Schedule.CONSTANT: "constant_with_warmup",
    Schedule.LINEAR: "linear",
    Schedule.COSINE: "cosine",
}


@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize("warmup_steps", [0, 3])
def test_the_schedules_are_those_of_transformers(schedule: Schedule, warmup_steps: int) -> None:
    spec = OptimizerSpec(learning_rate=0.5, schedule=schedule, warmup_steps=warmup_steps)
    reference = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    scheduler = get_scheduler(
        TRANSFORMERS_NAMES[schedule], reference, num_warmup_steps=warmup_steps, num_training_steps=10
    )
    for step in range(10):
        assert learning_rate(spec, step=step, total_steps=10) == pytest.approx(scheduler.get_last_lr()[0])
        reference.step()
        scheduler.step()


def test_a_warm_up_longer_than_the_run_only_warms_up() -> None:
    spec = OptimizerSpec(learning_rate=1.0, schedule=Schedule.COSINE, warmup_steps=20)
    assert [learning_rate(spec, step=step, total_steps=10) for step in (0, 5, 9)] == [0.0, 0.25, 0.45]


SPEC = OptimizerSpec(
    learning_rate=0.1,
    schedule=Schedule.LINEAR,
    warmup_steps=1,
    weight_decay=0.5,
    beta1=0.8,
    beta2=0.95,
    max_grad_norm=0.5,
)


def a_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2))


def gradients() -> Iterator[torch.Tensor]:
    """What to multiply the output with in each of three steps; the first is too small to be clipped."""
    yield from (torch.tensor([scale, -0.5 * scale]) for scale in (0.01, 3.0, 1.0))


def policy_optimizer(model: torch.nn.Module) -> PolicyOptimizer:
    policy: Any = SimpleNamespace(trained_parameters=lambda: dict(model.named_parameters()))
    return PolicyOptimizer(policy, SPEC, total_steps=4)


def loss(model: torch.nn.Module, factor: torch.Tensor) -> torch.Tensor:
    return (model(torch.tensor([[0.5, -1.0, 2.0]])) * factor).sum()


def test_a_step_is_adamws_with_every_number_of_the_spec() -> None:
    model = a_model()
    expected = copy.deepcopy(model)
    optimizer = policy_optimizer(model)
    matrices = [p for p in expected.parameters() if p.ndim == 2]
    others = [p for p in expected.parameters() if p.ndim == 1]
    adamw = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.5}, {"params": others, "weight_decay": 0.0}],
        betas=(0.8, 0.95),
    )
    # from zero, then linear down to zero after the fourth step
    for step, (rate, factor) in enumerate(zip((0.0, 0.1, 0.1 * 2 / 3), gradients(), strict=True)):
        for group in adamw.param_groups:
            group["lr"] = rate
        adamw.zero_grad()
        loss(expected, factor).backward()
        norm = torch.nn.utils.clip_grad_norm_(expected.parameters(), 0.5)
        adamw.step()

        loss(model, factor).backward()
        assert optimizer.step(step=step) == (pytest.approx(float(norm)), pytest.approx(rate))
        for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_a_step_clips_only_what_is_too_large() -> None:
    norms = []
    for factor in gradients():
        model = a_model()
        loss(model, factor).backward()
        norms.append(policy_optimizer(model).step(step=1)[0])
    assert norms[0] < SPEC.max_grad_norm < norms[2] < norms[1], "the steps above clip nothing, or everything"


def test_a_step_computes_in_the_memory_of_weights_gradients_and_moments() -> None:
    """With a kernel for each operation AdamW would need a copy of a tensor, or of all of them."""
    model = torch.nn.Linear(256, 256)
    optimizer = policy_optimizer(model)
    model(torch.ones(1, 256)).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    state = [tensor for _, tensor in optimizer.state_tensors()]
    with LiveTensors(known=[*model.parameters(), *gradients, *state]) as live:
        optimizer.step(step=1)
    assert live.peak_bytes < 1024


def test_a_gradient_that_is_not_finite_leaves_weights_and_moments_as_they_were() -> None:
    model = a_model()
    optimizer = policy_optimizer(model)
    *before, last = gradients()
    for step, factor in enumerate(before):
        loss(model, factor).backward()
        optimizer.step(step=step)
    weights = copy.deepcopy(model.state_dict())
    state = {name: tensor.clone() for name, tensor in optimizer.state_tensors()}
    loss(model, last * math.nan).backward()
    norm, _ = optimizer.step(step=2)
    assert math.isnan(norm)
    assert all(tensor.equal(weights[name]) for name, tensor in model.state_dict().items())
    assert all(tensor.equal(state[name]) for name, tensor in optimizer.state_tensors())


def test_a_restored_state_goes_on_with_the_same_bits() -> None:
    model = a_model()
    optimizer = policy_optimizer(model)
    *before, last = gradients()
    for step, factor in enumerate(before):
        loss(model, factor).backward()
        optimizer.step(step=step)
    resumed = copy.deepcopy(model)
    restored = policy_optimizer(resumed)
    for (name, ours), (other_name, theirs) in zip(
        restored.state_tensors(), optimizer.state_tensors(), strict=True
    ):
        assert name == other_name
        ours.copy_(theirs)
    for each, its_optimizer in ((model, optimizer), (resumed, restored)):
        loss(each, last).backward()
        its_optimizer.step(step=2)
    assert all(a.equal(b) for a, b in zip(model.parameters(), resumed.parameters(), strict=True))
