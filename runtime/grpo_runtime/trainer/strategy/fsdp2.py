"""Fully sharded data parallelism with torch's `fully_shard`: each rank holds a part of every tensor.

Every decoder layer is a unit, and embeddings, last norm and head are one more: it is put together for its
forward pass, and again for its backward pass, and only its shards stay. The last unit stays whole from its
forward to its backward pass, which would put it together again at once. A rank holds its share of weights,
gradients and AdamW's moments, one or two whole layers, and the last unit. While loading, rank 0 also has the
whole policy in CPU memory, as the files gave it.

Master weights, gradients and moments are float32. In a bfloat16 run units are put together in bfloat16, as
engines hold them, and gradients are summed over ranks in float32. `Policy`'s autocast stays: it computes in
float32 what it does so under DDP.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from grpo_api.v1alpha1.spec import OptimizerSpec
from grpo_runtime.model.language_model import decoder_layers, vocabulary_size
from grpo_runtime.model.weights import NamedTensors
from grpo_runtime.trainer.distributed import Ranks, peer_errors
from grpo_runtime.trainer.optimizer import PolicyOptimizer
from grpo_runtime.trainer.policy import Policy, PolicyWeights
from grpo_runtime.trainer.strategy.interface import Spreading, TrainingState
from grpo_runtime.trainer.strategy.placement import place
from grpo_runtime.weight_sync.source import WeightSource


class FSDP2Strategy:
    """A shard of the policy on every rank: a `Strategy`."""

    is_sharded = True

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
        self.device = device or policy.device
        """Where token ids must be."""
        self._ranks = ranks
        units = (*decoder_layers(policy.model), policy)
        self._cut(policy, units)
        for unit in units:
            # the sum of all ranks' gradients, in place of their average
            _sharded(unit).set_gradient_divide_factor(1.0)
            _sharded(unit).set_force_sum_reduction_for_comms(True)
        # now: in a pass the modules have whole parameters in their place, while another thread may read
        self._parameters = dict(policy.model.named_parameters())
        self._saved = policy.saved_parameters()
        self._trained = policy.trained_parameters()
        self._buffers = policy.saved_buffers()
        self._optimizer = PolicyOptimizer(policy, optimizer, total_steps=total_steps)
        self._state_shards, self._engine_shards = ShardGroup(ranks), ShardGroup(ranks)
        self._weights = PolicyWeights(
            policy,
            lambda: (
                (name, self._engine_shards.whole(parameter, dtype=policy.engine_dtype(name)))
                for name, parameter in self._parameters.items()
            ),
        )

    @property
    def vocab_size(self) -> int:
        """Entries of the model's vocabulary."""
        return vocabulary_size(self.policy.model.config)

    @contextlib.contextmanager
    def micro_batch(self, *, is_last: bool) -> Iterator[None]:
        """Context of forward and backward of one part of a step. Ranks meet in every part: gradients that
        wait for the last one would be whole."""
        yield

    def score(self, token_ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logprobs and entropies [B, T-1], with gradients."""
        with peer_errors():
            logprobs, entropies = self.policy(token_ids, mask)
        return logprobs, entropies

    @torch.no_grad()
    def score_only(self, token_ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logprobs and entropies [B, T-1], without gradients."""
        found = self.score(token_ids, mask)
        # no backward pass does it
        _sharded(self.policy).reshard()
        return found

    def spread_reference(self, policy: Policy) -> Spreading:
        """Spread a policy that is not trained. It is cut like the policy, and its last unit goes back after
        each pass."""
        self._cut(policy, (*decoder_layers(policy.model), policy))
        return Spreading(
            trained=self._trained,
            whole=self._state_shards.whole,
            take=lambda tensor, whole: self._state_shards.take(tensor, whole=whole),
            after_pass=_sharded(policy).reshard,
        )

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of the sum of all ranks' `loss`."""
        with peer_errors():
            loss.backward()

    def optimizer_step(self, *, step: int) -> tuple[float, float]:
        """Clip, apply and drop the gradients; returns their norm before, and the learning rate."""
        with peer_errors():
            return self._optimizer.step(step=step)

    def probe_logprobs(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Logprobs [B, T-1] at temperature 1, without gradients."""
        with peer_errors():
            logprobs = self.policy.logprobs_at_one(token_ids)
        # no backward pass does it
        _sharded(self.policy).reshard()
        return logprobs

    def engine_weights(self) -> WeightSource:
        """The weights as engines hold them. Shards get the run's precision before they travel."""
        return self._weights

    def weight_shards(self) -> Iterable[torch.Tensor]:
        """The master weights of which this rank answers for the digest."""
        for parameter in self._saved.values():
            yield parameter.to_local() if isinstance(parameter, DTensor) else parameter

    def model_state(self) -> NamedTensors:
        """The model's state dict, each tensor whole. A tied parameter is there once."""
        for name, parameter in self._saved.items():
            yield name, self._state_shards.whole(parameter)
        yield from self._buffers.items()

    def optimizer_state(self) -> NamedTensors:
        """The optimizer's state, each tensor whole."""
        for name, tensor in self._optimizer.state_tensors():
            yield name, self._state_shards.whole(tensor)

    def load(self, state: TrainingState | None) -> None:
        """Take over a state on every rank. Rank 0 gives each rank its part of one tensor after the other. The
        optimizer has its memory afterwards, so that a colocated engine does not take it."""
        moments = dict(self._optimizer.state_tensors())
        has_state = self._ranks.broadcast(torch.tensor(state is not None, dtype=torch.uint8))
        if not has_state:
            return
        for name, parameter in self._saved.items():
            self._state_shards.take(parameter, whole=None if state is None else state.model[name])
        for name, tensor in moments.items():
            self._state_shards.take(tensor, whole=None if state is None else state.optimizer[name])

    def _cut(self, policy: Policy, units: Sequence[nn.Module]) -> None:
        """Bring one unit after the other to the device and cut it: no more than one is whole there."""
        precision = MixedPrecisionPolicy()
        if policy.dtype != torch.float32:
            precision = MixedPrecisionPolicy(param_dtype=policy.dtype, reduce_dtype=torch.float32)
        with peer_errors():
            mesh = init_device_mesh(self.device.type, (self._ranks.world_size,))
            for unit in units:
                place(unit, device=self.device, ranks=self._ranks)
                fully_shard(unit, mesh=mesh, mp_policy=precision)


def _sharded(unit: nn.Module) -> FSDPModule:
    """The same module, with the methods that `fully_shard` has given it."""
    assert isinstance(unit, FSDPModule)
    return unit


class ShardGroup:
    """A process group of its own in which all ranks read and write sharded tensors, one after the other.

    Every rank makes the same calls in the same order, from one thread at a time. Other threads may use other
    groups meanwhile.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        with peer_errors():
            self._group = dist.new_group()

    @torch.no_grad()
    def whole(self, tensor: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The whole of `tensor` on every rank, as `dtype`. One that is not sharded is returned as it is."""
        if not isinstance(tensor, DTensor):
            return tensor.detach()
        shard = tensor.to_local()
        own = self._empty_shard(tensor, dtype=dtype or tensor.dtype)
        own[: shard.shape[0]].copy_(shard)
        rows = own.new_empty((self._ranks.world_size * own.shape[0], *own.shape[1:]))
        with peer_errors():
            dist.all_gather(list(rows.split(own.shape[0])), own, group=self._group)
        return rows[: tensor.shape[0]]

    @torch.no_grad()
    def take(self, tensor: torch.Tensor, *, whole: torch.Tensor | None) -> None:
        """Copy rank 0's `whole` into `tensor`, or this rank's shard of it. The other ranks give None."""
        if not isinstance(tensor, DTensor):
            if whole is not None:
                tensor.copy_(whole)
            with peer_errors():
                dist.broadcast(tensor, src=0, group=self._group)
            return
        shard = tensor.to_local()
        own = self._empty_shard(tensor, dtype=tensor.dtype)
        with peer_errors():
            dist.scatter(own, self._cut(whole, like=own), src=0, group=self._group)
        shard.copy_(own[: shard.shape[0]])

    def _cut(self, whole: torch.Tensor | None, *, like: torch.Tensor) -> list[torch.Tensor] | None:
        """The shard that each rank gets of rank 0's tensor, all of the same shape."""
        if whole is None:
            return None
        rows = like.new_zeros((self._ranks.world_size * like.shape[0], *like.shape[1:]))
        rows[: whole.shape[0]].copy_(whole)
        return list(rows.split(like.shape[0]))

    def _empty_shard(self, tensor: DTensor, *, dtype: torch.dtype) -> torch.Tensor:
        """Empty shard with as many rows of `tensor` as the first shard has; the last ones may have fewer, and
        are padded."""
        num_rows = -(-tensor.shape[0] // self._ranks.world_size)
        return tensor.to_local().new_zeros((num_rows, *tensor.shape[1:]), dtype=dtype)
