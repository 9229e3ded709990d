"""AdamW and the learning rate of each step."""

import math
from collections.abc import Container, Iterator, Mapping

import torch
from torch.distributed.tensor import DTensor

from grpo_api.v1alpha1.spec import OptimizerSpec, Schedule
from grpo_runtime.trainer.policy import Policy

MOMENTS = ("exp_avg", "exp_avg_sq")
"""AdamW's, by its own names."""


class PolicyOptimizer:
    """AdamW on the policy's parameters, with gradient clipping and a learning rate that is set per step.

    The parameters may be DTensors, of which each rank has a shard. Then all ranks make each step at the same
    time, for the norm is that of the whole gradient, and the state is sharded as the parameters are.
    """

    def __init__(
        self, policy: Policy, spec: OptimizerSpec, *, total_steps: int, drops_gradients: bool = True
    ) -> None:
        """Without `drops_gradients` their memory stays theirs after a step, and is 0 then."""
        self._spec = spec
        self._drops_gradients = drops_gradients
        self._total_steps = total_steps
        self._parameters = policy.trained_parameters()
        self._adamw = make_adamw(self._parameters, spec, matrices=matrix_names(self._parameters))

    def step(self, *, step: int) -> tuple[float, float]:
        """Clip the gradients, apply them at the learning rate of `step` (from 0), and let go of them.

        Returns the global gradient norm before clipping, and the learning rate. Where a gradient is not
        finite neither is the norm, and weights and moments stay as they were: every weight would be NaN.
        """
        rate = learning_rate(self._spec, step=step, total_steps=self._total_steps)
        for group in self._adamw.param_groups:
            group["lr"] = rate
        norm = torch.nn.utils.clip_grad_norm_(self._parameters.values(), self._spec.max_grad_norm)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        if norm.isfinite():
            self._adamw.step()
        self._adamw.zero_grad(set_to_none=self._drops_gradients)
        return float(norm), rate

    def state_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """AdamW's state, `moment/parameter` each, in a fixed order; zeros before the first step.

        The tensors are the optimizer's own: writing into them restores a state.
        """
        for name, parameter in self._parameters.items():
            state = self._adamw.state[parameter]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
            for kind in ("step", *MOMENTS):
                yield f"{kind}/{name}", state[kind]


def matrix_names(parameters: Mapping[str, torch.Tensor]) -> frozenset[str]:
    """Names of the parameters with more than one dimension. They are whole, or show the shape of the
    whole."""
    return frozenset(name for name, parameter in parameters.items() if parameter.ndim > 1)


def make_adamw(
    parameters: Mapping[str, torch.nn.Parameter],
    spec: OptimizerSpec,
    *,
    matrices: Container[str],
) -> torch.optim.AdamW:
    """AdamW that pulls `matrices` towards zero and, as in transformers, neither norms nor biases.

    torch's fused kernel goes over weights, gradients and moments once and needs no memory of its own. torch
    does not choose it by itself. It wants `step` where the parameter is.
    """
    groups = [
        {
            "params": [p for name, p in parameters.items() if name in matrices],
            "weight_decay": spec.weight_decay,
        },
        {"params": [p for name, p in parameters.items() if name not in matrices], "weight_decay": 0.0},
    ]
    # DeepSpeed lays each group end to end, and an adapter has no norms or biases
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=spec.learning_rate, betas=(spec.beta1, spec.beta2), fused=True)


def learning_rate(spec: OptimizerSpec, *, step: int, total_steps: int) -> float:
    """The learning rate of `step` (from 0): transformers' constant, linear and cosine schedules.

    Linear warm-up from 0 over `warmup_steps`; linear and cosine then reach 0 right after the last step.
    """
    if step < spec.warmup_steps:
        return spec.learning_rate * step / spec.warmup_steps
    if spec.schedule == Schedule.CONSTANT:
        return spec.learning_rate
    passed = (step - spec.warmup_steps) / max(1, total_steps - spec.warmup_steps)
    if spec.schedule == Schedule.LINEAR:
        return spec.learning_rate * max(0.0, 1.0 - passed)
    return spec.learning_rate * max(0.0, 0.5 * (1.0 + math.cos(math.pi * passed)))
