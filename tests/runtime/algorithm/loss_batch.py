"""A batch to compute losses of, in float64, with tokens, padding and sequences of every kind."""

import dataclasses
from typing import Any

import torch

from grpo_runtime.algorithm.importance_correction import ImportanceCorrection
from grpo_runtime.algorithm.kl import KLPenalty
from grpo_runtime.algorithm.types import LossInputs, LossOptions

CORRECTION = ImportanceCorrection(mode="mask", floor=0.9, cap=1.1)


def batch(*, num_sequences: int = 8, num_tokens: int = 7, seed: int = 0) -> LossInputs:
    generator = torch.Generator().manual_seed(seed)

    def noise(scale: float) -> torch.Tensor:
        return torch.randn(num_sequences, num_tokens, generator=generator, dtype=torch.float64) * scale

    trainer = -noise(1.0).abs() - 0.1
    lengths = torch.randint(0, num_tokens + 1, (num_sequences,), generator=generator)
    return LossInputs(
        trainer_logprobs=trainer.requires_grad_(),
        advantages=torch.randn(num_sequences, generator=generator, dtype=torch.float64),
        loss_mask=torch.arange(num_tokens) < lengths.unsqueeze(1),
        old_logprobs=trainer.detach() + noise(0.2),
        rollout_logprobs=trainer.detach() + noise(0.1),
        ref_logprobs=trainer.detach() + noise(0.3),
        entropies=noise(1.0).abs(),
    )


def rows(inputs: LossInputs, which: slice | torch.Tensor, **changes: Any) -> LossInputs:
    fields = {field.name: getattr(inputs, field.name) for field in dataclasses.fields(inputs)}
    return LossInputs(**{name: None if t is None else t[which] for name, t in fields.items()} | changes)


def options(loss_type: str, **changes: Any) -> LossOptions:
    return LossOptions(
        **{
            "loss_type": loss_type,
            "kl": KLPenalty(beta=0.1),
            "importance_correction": CORRECTION,
            "max_completion_length": 9,
        }
        | changes
    )
