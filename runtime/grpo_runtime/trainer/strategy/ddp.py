"""Data parallelism with torch's DDP: every rank holds the whole policy and trains on part of the batch."""

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch.nn.parallel import DistributedDataParallel

from grpo_api.v1alpha1.spec import OptimizerSpec
from grpo_runtime.model.language_model import vocabulary_size
from grpo_runtime.model.weights import NamedTensors
from grpo_runtime.trainer.distributed import Ranks, peer_errors
from grpo_runtime.trainer.optimizer import PolicyOptimizer
from grpo_runtime.trainer.policy import Policy, PolicyWeights
from grpo_runtime.trainer.strategy.interface import Spreading, TrainingState
from grpo_runtime.trainer.strategy.placement import on_every_rank, place
from grpo_runtime.weight_sync.source import WeightSource


class DDPStrategy:
    """A replica of the policy on every rank: a `Strategy`."""

    is_sharded = False

    def __init__(
        self,
        policy: Policy,
        *,
        optimizer: OptimizerSpec,
        total_steps: int,
        ranks: Ranks,
        device: torch.device | None = None,
    ) -> None:
        self.policy = policy
        self._weights = PolicyWeights(policy)
        self._ranks = ranks
        place(policy, device=device or policy.device, ranks=ranks)
        # DDP keeps the memory in which it sums gradients, and they are views of it
        self._optimizer = PolicyOptimizer(policy, optimizer, total_steps=total_steps, drops_gradients=False)
        with peer_errors():
            # every rank has rank 0's values
            self._replica = DistributedDataParallel(policy, init_sync=False, gradient_as_bucket_view=True)
        self._settle_buckets()

    @property
    def device(self) -> torch.device:
        """Where token ids must be."""
        return self.policy.device

    @property
    def vocab_size(self) -> int:
        """Entries of the model's vocabulary."""
        return vocabulary_size(self.policy.model.config)

    @contextlib.contextmanager
    def micro_batch(self, *, is_last: bool) -> Iterator[None]:
        """Context of forward and backward of one part of a step. Ranks meet in the last part only."""
        with contextlib.nullcontext() if is_last else self._replica.no_sync():
            yield

    def score(self, token_ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logprobs and entropies [B, T-1], with gradients."""
        with peer_errors():
            logprobs, entropies = self._replica(token_ids, mask)
        return logprobs, entropies

    @torch.no_grad()
    def score_only(self, token_ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logprobs and entropies [B, T-1], without gradients. Meets no other rank."""
        logprobs, entropies = self.policy(token_ids, mask)
        return logprobs, entropies

    def spread_reference(self, policy: Policy) -> Spreading:
        """Spread a policy that is not trained. Each rank has all of it."""
        place(policy, device=self.device, ranks=self._ranks)
        return on_every_rank(self.policy.trained_parameters(), ranks=self._ranks)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of the sum of all ranks' `loss`."""
        with peer_errors():
            # DDP averages gradients
            (loss * self._ranks.world_size).backward()

    def optimizer_step(self, *, step: int) -> tuple[float, float]:
        """Clip, apply and drop the gradients; returns their norm before, and the learning rate. Every rank
        has all gradients, so its norm is the global one."""
        return self._optimizer.step(step=step)

    def probe_logprobs(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Logprobs [B, T-1] at temperature 1, without gradients."""
        return self.policy.logprobs_at_one(token_ids)

    def engine_weights(self) -> WeightSource:
        """The weights as engines hold them."""
        return self._weights

    def weight_shards(self) -> Iterable[torch.Tensor]:
        """The master weights of which this rank answers for the digest. All ranks have all weights: each
        takes every so many of them."""
        saved = list(self.policy.saved_parameters().values())
        yield from saved[self._ranks.rank :: self._ranks.world_size]

    def model_state(self) -> NamedTensors:
        """The model's state dict, each tensor whole."""
        if self.policy.has_adapter:
            yield from self.policy.saved_parameters().items()
        else:
            yield from self.policy.model.state_dict().items()

    def optimizer_state(self) -> NamedTensors:
        """The optimizer's state, each tensor whole."""
        yield from self._optimizer.state_tensors()

    @torch.no_grad()
    def load(self, state: TrainingState | None) -> None:
        """Take over a state on every rank. Rank 0 copies the state in and gives it to every rank."""
        for name, parameter in self.policy.saved_parameters().items():
            if state is not None:
                parameter.copy_(state.model[name])
            self._ranks.broadcast(parameter)
        for name, tensor in self._optimizer.state_tensors():
            if state is not None:
                tensor.copy_(state.optimizer[name])
            self._ranks.broadcast(tensor)

    def _settle_buckets(self) -> None:
        """Run dummy backward passes, because DDP rebuilds its buckets after the first one.

        Otherwise a resumed run would sum its first step in another order than the run it continues.
        """
        for _ in range(2):
            token_ids = torch.zeros((1, 2), dtype=torch.int64, device=self.device)
            logprobs, _ = self.score(token_ids, torch.ones_like(token_ids[:, 1:], dtype=torch.bool))
            self.backward(logprobs.sum())
            self.policy.zero_grad(set_to_none=False)
