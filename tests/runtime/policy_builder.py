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


def logprobs(
    policy: PreTrainedModel,
    ids: tuple[int, ...],
    *,
    temperature: float = 1.0,
    repetition_penalty: float = 1.0,
) -> list[float]:
    """Logprobs of every token after the first, in float32. `repetition_penalty` as in vLLM and transformers:
    each token that stands before, also in the prompt, has its logit divided or multiplied by it."""
    with torch.no_grad():
        logits = policy(torch.tensor([ids])).logits[0, :-1].float()
    if repetition_penalty != 1.0:
        seen = torch.zeros_like(logits, dtype=torch.bool)
        for place in range(len(ids) - 1):
            seen[place:, ids[place]] = True
        penalized = torch.where(logits > 0, logits / repetition_penalty, logits * repetition_penalty)
        logits = torch.where(seen, penalized, logits)
    return _of_tokens(logits / temperature, ids)


def logprobs_with_kept_cache(
    before: PreTrainedModel, after: PreTrainedModel, ids: tuple[int, ...], *, num_kept: int
) -> list[float]:
    """Logprobs of every token after the first, where `after` takes the keys and values of the first
    `num_kept` tokens that `before` has computed."""
    with torch.no_grad():
        first = before(torch.tensor([ids[:num_kept]]), use_cache=True)
        rest = after(torch.tensor([ids[num_kept:]]), past_key_values=first.past_key_values)
    return _of_tokens(torch.cat((first.logits, rest.logits), dim=1)[0, :-1].float(), ids)


def _of_tokens(logits: torch.Tensor, ids: tuple[int, ...]) -> list[float]:
    return logits.log_softmax(-1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()


def probe_of(policy: PreTrainedModel, *, tolerance: float = 1e-4) -> Probe:
    """The probe that an engine with exactly this policy passes."""
    return Probe(token_ids=PROBE_IDS, logprobs=tuple(logprobs(policy, PROBE_IDS)), tolerance=tolerance)
