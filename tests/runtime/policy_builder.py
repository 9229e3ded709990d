"""Policies with weights of their own, and their logprobs computed by transformers."""

from pathlib import Path

import torch
from transformers import PreTrainedModel
from weight_sources import FixedWeights

from grpo_runtime.model.load import load_policy
from grpo_runtime.model.weights import named_weights
from grpo_runtime.rollouts.interface import Probe

PROBE_IDS = tuple(range(4, 68))


def changed_policy(model_dir: Path, *, seed: int) -> PreTrainedModel:
    """The engine's model with noise on every weight, the same for the same seed."""
    policy = load_policy(model_dir, dtype="float32")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return policy.eval()


def weights_of(policy: PreTrainedModel) -> FixedWeights:
    """The weights of a policy, for an engine."""
    return FixedWeights(named_weights(policy))


def logprobs(policy: PreTrainedModel, ids: tuple[int, ...], *, temperature: float = 1.0) -> list[float]:
    """Logprobs of every token after the first, in float32."""
    with torch.no_grad():
        logits = policy(torch.tensor([ids])).logits[0, :-1].float() / temperature
    return logits.log_softmax(-1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()


def probe_of(policy: PreTrainedModel, *, tolerance: float = 1e-4) -> Probe:
    """The probe that an engine with exactly this policy passes."""
    return Probe(token_ids=PROBE_IDS, logprobs=tuple(logprobs(policy, PROBE_IDS)), tolerance=tolerance)
