"""The interface of a strategy: how the policy is spread over the ranks. B sequences, T tokens.

Every rank has a strategy and calls the same methods in the same order, after rank 0 has announced what comes
(a `Command`). A sharded strategy, whose weights are spread over the ranks, puts a tensor together only
while all ranks read it; it does so in a process group of its own, because a thread may read while the main
threads meet. In mode Colocated the engines read `engine_weights` in such threads, and may still do so when a
checkpoint is saved after a stop: that reading needs a group apart from the others.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import torch

from grpo_api.v1alpha1.spec import OptimizerSpec
from grpo_runtime.model.weights import NamedTensors
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.policy import Policy
from grpo_runtime.weight_sync.source import WeightSource


@dataclass(frozen=True)
class TrainingState:
    """The tensors of a checkpoint, whole, by name."""

    model: Mapping[str, torch.Tensor]
    """Parameters as `Strategy.model_state` gave them; more than the parameters may be there."""
    optimizer: Mapping[str, torch.Tensor]
    """Optimizer state as `Strategy.optimizer_state` gave it."""
    reference: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Tensors of a reference policy that follows the one that is trained; not the strategy's."""


@dataclass(frozen=True, kw_only=True)
class Spreading:
    """How a strategy has spread a policy that is not trained, as a reference policy is. All ranks call the
    same at the same time."""

    trained: Mapping[str, torch.nn.Parameter]
    """The parameters of the policy that is trained, which are spread in the same way."""
    whole: Callable[[torch.Tensor], torch.Tensor]
    """The whole of a tensor of which this rank may have a part."""
    take: Callable[[torch.Tensor, torch.Tensor | None], None]
    """Copy rank 0's whole tensor into the tensor of each rank, or its part; the others give None."""
    after_pass: Callable[[], None] = lambda: None
    """Give back what a forward pass has put together."""


class Strategy(Protocol):
    """The policy and its optimizer on this rank."""

    @property
    def device(self) -> torch.device:
        """Where token ids must be."""
        ...

    @property
    def vocab_size(self) -> int:
        """Entries of the model's vocabulary."""
        ...

    @property
    def is_sharded(self) -> bool:
        """Whether some tensor, of the weights or of the optimizer, is whole only while all ranks read it. The
        ranks other than 0 then take part in every reading of rank 0."""
        ...

    def micro_batch(self, *, is_last: bool) -> AbstractContextManager[None]:
        """Context of forward and backward of one part of a step. Gradients are complete after the last
        one."""
        ...

    def score(self, token_ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logprobs and entropies [B, T-1] of tokens 1.. of `token_ids` [B, T] where `mask` [B, T-1] is true,
        and exactly 0 elsewhere.

        The logprobs have gradients, and every parameter gets one, of 0 when the mask is true nowhere: ranks
        that wait for each other's gradients may each have any mask.
        """
        ...

    def score_only(self, token_ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The result of `score`, without gradients and outside of `micro_batch`."""
        ...

    def spread_reference(self, policy: Policy) -> Spreading:
        """Spread a policy that is not trained, as this one is: rank 0 has its weights, elsewhere they may be
        on the meta device. All ranks call it at the same time. Raises UserError when the strategy cannot."""
        ...

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of the sum of all ranks' `loss`."""
        ...

    def optimizer_step(self, *, step: int) -> tuple[float, float]:
        """Clip the gradients to the global norm, apply them at the learning rate of `step` (from 0), drop
        them.

        Returns the norm over all ranks before clipping, and the learning rate. Where a gradient of any rank
        is not finite the norm is not either, on every rank, and weights and moments stay as they were.
        """
        ...

    def probe_logprobs(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Logprobs [B, T-1] at temperature 1, without gradients."""
        ...

    def engine_weights(self) -> WeightSource:
        """The weights as engines hold them: Hugging Face names, each whole, in the run's precision."""
        ...

    def weight_shards(self) -> Iterable[torch.Tensor]:
        """The master weights of which this rank answers for the digest, in a fixed order: all ranks together
        have all of them. Meets no other rank."""
        ...

    def model_state(self) -> NamedTensors:
        """The model's state dict, each tensor whole, in a fixed order."""
        ...

    def optimizer_state(self) -> NamedTensors:
        """The optimizer's state as `KIND/PARAMETER`, each tensor whole, in a fixed order."""
        ...

    def load(self, state: TrainingState | None) -> None:
        """Take over a state on every rank. Rank 0 has it; the others give None and get their part.

        None on rank 0 makes all ranks continue from what it has loaded.
        """
        ...


class MakeStrategy(Protocol):
    """Spreads a policy over the ranks. All ranks call it at the same time.

    Rank 0 has loaded the policy; on the other ranks its tensors may be on the meta device, without memory or
    values. `device` is where each rank trains; without it, where the policy is.
    """

    def __call__(
        self,
        policy: Policy,
        *,
        optimizer: OptimizerSpec,
        total_steps: int,
        ranks: Ranks,
        device: torch.device | None = None,
    ) -> Strategy: ...
