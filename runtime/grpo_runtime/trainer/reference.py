"""The reference policy of a KL penalty: the model as its source has it. B sequences, T tokens.

Of a policy with an adapter it is the policy without the adapter, and needs no memory. Else it is a second
copy of the weights, made before the first update and before a checkpoint is loaded. One that never changes
has the precision of the run and is no part of a checkpoint: a resumed run has it from the source again. One
that follows the policy is float32, and a part of every checkpoint.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from transformers import PreTrainedModel

from grpo_api.v1alpha1.spec import RefSyncSpec
from grpo_runtime.model.lora import has_adapter, without_adapter
from grpo_runtime.model.weights import NamedTensors
from grpo_runtime.trainer.policy import Policy
from grpo_runtime.trainer.strategy.interface import Strategy
from grpo_runtime.trainer.strategy.reference import ReferencePolicy


class Reference(ABC):
    """What the policy is held to."""

    @abstractmethod
    def logprobs(self, token_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Logprobs [B, T-1] of tokens 1.. of `token_ids` [B, T] where `mask` [B, T-1] is true, 0 elsewhere,
        without gradients. All ranks call it equally often."""

    def after_step(self, step: int) -> None:  # noqa: B027 - most do nothing
        """The policy has made its updates of `step` (from 0)."""

    def state(self) -> NamedTensors:
        """The weights that a checkpoint has to hold, each whole, in a fixed order. All ranks read them at the
        same time."""
        return iter(())

    def load(self, state: Mapping[str, torch.Tensor] | None) -> None:  # noqa: B027 - most do nothing
        """Take over what rank 0 has as `state`. All ranks call it at the same time; the others give None."""


class PolicyWithoutAdapter(Reference):
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


class FixedReference(Reference):
    """A second model, which stays as it is; see `Reference`."""

    def __init__(self, policy: ReferencePolicy) -> None:
        self._policy = policy

    def logprobs(self, token_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """See `Reference`."""
        return self._policy.logprobs(token_ids, mask)


class FollowingReference(FixedReference):
    """A second model that follows the policy: TR-DPO's soft update (arXiv:2404.09656); see `Reference`."""

    def __init__(self, policy: ReferencePolicy, sync: RefSyncSpec) -> None:
        super().__init__(policy)
        self._sync = sync

    def after_step(self, step: int) -> None:
        """See `Reference`."""
        if (step + 1) % self._sync.every_steps == 0:
            self._policy.follow(mix=self._sync.mix)

    def state(self) -> NamedTensors:
        """See `Reference`."""
        return self._policy.state()

    def load(self, state: Mapping[str, torch.Tensor] | None) -> None:
        """See `Reference`."""
        self._policy.load(state)


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


def make_reference(
    copied: Policy | None, *, model: PreTrainedModel, strategy: Strategy, sync: RefSyncSpec | None = None
) -> Reference:
    """The reference policy of all ranks, which call this at the same time. `copied` computes what
    `copy_of` gave of `model`, which is the one that is trained; `sync` says how it follows that."""
    if copied is None:
        return PolicyWithoutAdapter(strategy, model)
    spread = strategy.spread_reference(copied)
    return FixedReference(spread) if sync is None else FollowingReference(spread, sync)
