"""The reference policy of a KL penalty: the model as its source has it. B sequences, T tokens.

Of a policy with an adapter it is the policy without the adapter, and needs no memory. Else it is a second
copy of the weights, made before the first update and before a checkpoint is loaded, and spread over the ranks
as the policy is. One that never changes has the precision of the run and is no part of a checkpoint: a
resumed run has it from the source again. One that follows the policy is float32, and a part of every
checkpoint.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from grpo_api.v1alpha1.spec import RefSyncSpec
from grpo_runtime.model.lora import has_adapter, without_adapter
from grpo_runtime.model.weights import NamedTensors
from grpo_runtime.trainer.distributed import peer_errors
from grpo_runtime.trainer.policy import Policy
from grpo_runtime.trainer.strategy.interface import Spreading, Strategy


class Reference(ABC):
    """The reference policy, which the policy is kept close to."""

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
    """The policy that is trained, without the adapter that makes it another."""

    def __init__(self, strategy: Strategy, model: PreTrainedModel) -> None:
        """`model` is the policy's."""
        self._strategy = strategy
        self._model = model

    def logprobs(self, token_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Logprobs [B, T-1] of the policy, in whose passes the adapter is left out."""
        with without_adapter(self._model):
            found, _ = self._strategy.score_only(token_ids, mask)
        return found


class FixedReference(Reference):
    """A second model, which stays as it is, on the device of the strategy that has spread it."""

    def __init__(self, policy: Policy, spreading: Spreading) -> None:
        self._policy = policy
        self._spreading = spreading

    @torch.no_grad()
    def logprobs(self, token_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Logprobs [B, T-1] of the second model."""
        with peer_errors():
            found: torch.Tensor = self._policy(token_ids, mask)[0]
        self._spreading.after_pass()
        return found


class FollowingReference(FixedReference):
    """A second model that follows the policy: TR-DPO's soft update (arXiv:2404.09656)."""

    def __init__(self, policy: Policy, spreading: Spreading, sync: RefSyncSpec) -> None:
        super().__init__(policy, spreading)
        self._sync = sync
        # now: in a pass the modules may have whole parameters in their place
        own = dict(policy.model.named_parameters())
        self._parameters = {name: own[name] for name in spreading.trained}

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """Every so many steps, become mix x trained policy + (1 - mix) x this one. Each rank does so for what
        it has."""
        if (step + 1) % self._sync.every_steps:
            return
        for name, own in self._parameters.items():
            _local(own).lerp_(_local(self._spreading.trained[name]).to(own.dtype), self._sync.mix)

    def state(self) -> NamedTensors:
        """The weights that may follow, each whole."""
        for name, parameter in self._parameters.items():
            yield name, self._spreading.whole(parameter.detach())

    @torch.no_grad()
    def load(self, state: Mapping[str, torch.Tensor] | None) -> None:
        """Take over what rank 0 has as `state`."""
        for name, parameter in self._parameters.items():
            self._spreading.take(parameter, None if state is None else state[name])


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
    spreading = strategy.spread_reference(copied)
    return FixedReference(copied, spreading) if sync is None else FollowingReference(copied, spreading, sync)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor, which may be all of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
