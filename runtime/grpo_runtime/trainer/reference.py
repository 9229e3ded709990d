"""The reference policy of a KL penalty: the model as its source has it. B sequences, T tokens.

Of a policy with an adapter it is the policy without the adapter, and needs no memory. Else it is a second
copy of the weights, in the precision of the run, made before the first update and before a checkpoint is
loaded. It is no part of a checkpoint, because it never changes: a resumed run has it from the source again.
"""

import copy
from typing import Protocol

import torch
from transformers import PreTrainedModel

from grpo_runtime.model.lora import has_adapter, without_adapter
from grpo_runtime.trainer.policy import Policy
from grpo_runtime.trainer.strategy.interface import Strategy


class Reference(Protocol):
    """What the policy is held to."""

    def logprobs(self, token_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Logprobs [B, T-1] of tokens 1.. of `token_ids` [B, T] where `mask` [B, T-1] is true, 0 elsewhere,
        without gradients. All ranks call it equally often."""
        ...


class PolicyWithoutAdapter:
    """The policy that is trained, without the adapter that makes it another; see `Reference`."""

    def __init__(self, strategy: Strategy, model: PreTrainedModel) -> None:
        """`model` is the policy's."""
        self._strategy = strategy
        self._model = model

    def logprobs(self, token_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """See `Reference`."""
        with without_adapter(self._model):
            found, _ = self._strategy.score_only(token_ids, mask)
        return found


def copy_of(model: PreTrainedModel, *, dtype: torch.dtype) -> PreTrainedModel | None:
    """A second model for a reference policy, before the first is spread over the ranks; None for one with an
    adapter, which needs none. Weights on the meta device stay there. Buffers keep their precision."""
    if has_adapter(model):
        return None
    copied = copy.deepcopy(model)
    for parameter in copied.parameters():
        parameter.requires_grad_(False)
        parameter.data = parameter.data.to(dtype)
    return copied


def make_reference(copied: Policy | None, *, model: PreTrainedModel, strategy: Strategy) -> Reference:
    """The reference policy of all ranks, which call this at the same time. `copied` computes what
    `copy_of` gave of `model`, which is the one that is trained."""
    if copied is None:
        return PolicyWithoutAdapter(strategy, model)
    return strategy.spread_frozen(copied)
