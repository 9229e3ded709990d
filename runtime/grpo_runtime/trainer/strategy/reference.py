"""A policy that is not trained, such as the reference policy of a KL penalty. B sequences, T tokens."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor

from grpo_runtime.model.weights import NamedTensors
from grpo_runtime.trainer.distributed import Ranks, peer_errors
from grpo_runtime.trainer.policy import Policy


@dataclass(frozen=True)
class Spreading:
    """How a strategy has spread a policy. All ranks call the same at the same time."""

    whole: Callable[[torch.Tensor], torch.Tensor]
    """The whole of a tensor of which this rank may have a part."""
    take: Callable[[torch.Tensor, torch.Tensor | None], None]
    """Copy rank 0's whole tensor into the tensor of each rank, or its part; the others give None."""
    after_pass: Callable[[], None] = lambda: None
    """Give back what a forward pass has put together."""


def on_every_rank(ranks: Ranks) -> Spreading:
    """Each rank has all of it."""

    def take(tensor: torch.Tensor, whole: torch.Tensor | None) -> None:
        if whole is not None:
            tensor.copy_(whole)
        ranks.broadcast(tensor)

    return Spreading(whole=lambda tensor: tensor, take=take)


class ReferencePolicy:
    """Scores tokens without gradients, on the device of the strategy that has spread it."""

    def __init__(
        self, policy: Policy, *, trained: Mapping[str, torch.nn.Parameter], spreading: Spreading
    ) -> None:
        """`trained` are the parameters of the policy that is trained, spread in the same way."""
        self._policy = policy
        self._spreading = spreading
        self._trained = trained
        # now: in a pass the modules may have whole parameters in their place
        own = dict(policy.model.named_parameters())
        self._parameters = {name: own[name] for name in trained}

    @torch.no_grad()
    def logprobs(self, token_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Logprobs [B, T-1] of tokens 1.. of `token_ids` [B, T] where `mask` [B, T-1] is true, 0 elsewhere.
        All ranks call it equally often."""
        with peer_errors():
            found: torch.Tensor = self._policy(token_ids, mask)[0]
        self._spreading.after_pass()
        return found

    @torch.no_grad()
    def follow(self, *, mix: float) -> None:
        """Become mix x trained policy + (1 - mix) x this one. Each rank does so for what it has."""
        for name, own in self._parameters.items():
            _local(own).lerp_(_local(self._trained[name]).to(own.dtype), mix)

    def state(self) -> NamedTensors:
        """The weights that may follow, each whole, in a fixed order."""
        for name, parameter in self._parameters.items():
            yield name, self._spreading.whole(parameter.detach())

    @torch.no_grad()
    def load(self, state: Mapping[str, torch.Tensor] | None) -> None:
        """Take over what rank 0 has as `state`; the others give None."""
        for name, parameter in self._parameters.items():
            self._spreading.take(parameter, None if state is None else state[name])


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
