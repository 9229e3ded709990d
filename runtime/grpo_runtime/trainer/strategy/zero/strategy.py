"""DeepSpeed's ZeRO: the optimizer, with it the gradients, with them the weights are spread over the ranks.

All is float32, as under DDP, and the forward pass computes in the run's precision by the policy's autocast.
"""

import contextlib
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from grpo_api.v1alpha1.spec import DeepSpeedSpec, OptimizerSpec
from grpo_runtime.errors import UserError
from grpo_runtime.model.language_model import takes_only_text, vocabulary_size
from grpo_runtime.model.weights import NamedTensors
from grpo_runtime.trainer.distributed import Ranks, peer_errors
from grpo_runtime.trainer.optimizer import MOMENTS, learning_rate, make_adamw, matrix_names
from grpo_runtime.trainer.policy import Policy, PolicyWeights
from grpo_runtime.trainer.strategy.interface import Spreading, TrainingState
from grpo_runtime.trainer.strategy.placement import on_every_rank, place
from grpo_runtime.trainer.strategy.zero.engine import join_ranks, shard, start_engine
from grpo_runtime.trainer.strategy.zero.settings import deepspeed_config
from grpo_runtime.trainer.strategy.zero.tensors import PieceOfEach, PiecesOfAll, ZeroTensors
from grpo_runtime.weight_sync.source import WeightSource


class ZeroStrategy:
    """ZeRO of one stage on this rank: a `Strategy`."""

    is_sharded = True

    def __init__(
        self,
        policy: Policy,
        *,
        stage: int,
        spec: DeepSpeedSpec,
        optimizer: OptimizerSpec,
        total_steps: int,
        ranks: Ranks,
        device: torch.device | None = None,
    ) -> None:
        if not takes_only_text(policy.model):
            raise UserError(
                f"trainer.strategy ZeRO{stage} cannot leave a part of a model as it is, and "
                f"{type(policy.model).__name__} takes more than text: set trainer.strategy to DDP or FSDP2"
            )
        self.policy = policy
        self.device = device or policy.device
        """Where token ids must be."""
        self._ranks = ranks
        self._stage = stage
        self._spec, self._total_steps = optimizer, total_steps
        self._shapes = {name: parameter.shape for name, parameter in policy.model.named_parameters()}
        matrices = matrix_names(policy.trained_parameters())
        self._weights = PolicyWeights(
            policy,
            lambda: (
                (
                    name,
                    self._whole_weight(
                        name, parameter, group=self._engine_group, dtype=policy.engine_dtype(name)
                    ),
                )
                for name, parameter in policy.model.named_parameters()
            ),
        )
        # now, while the parameters show their shapes
        self._weights.layout()
        config = deepspeed_config(spec, stage=stage, optimizer=optimizer)
        join_ranks(config, device=self.device)
        if stage == 3:
            shard(policy, config=config, device=self.device, ranks=ranks)
        else:
            place(policy, device=self.device, ranks=ranks)
        self._parameters = policy.trained_parameters()
        self._buffers = policy.saved_buffers()
        adamw = make_adamw(self._parameters, optimizer, matrices=matrices)
        self._engine = start_engine(policy, adamw, config=config)
        self._optimizer = self._engine.optimizer
        self._tensors: ZeroTensors = (PieceOfEach if stage == 3 else PiecesOfAll)(
            self._optimizer, device=self.device
        )
        with peer_errors():
            self._state_group, self._engine_group = dist.new_group(), dist.new_group()

    @property
    def vocab_size(self) -> int:
        """Entries of the model's vocabulary."""
        return vocabulary_size(self.policy.model.config)

    @contextlib.contextmanager
    def micro_batch(self, *, is_last: bool) -> Iterator[None]:
        """Context of forward and backward of one part of a step. With ZeRO-2 and 3 ranks meet in every part:
        gradients that wait would be whole."""
        self._engine.set_gradient_accumulation_boundary(is_last)
        yield

    def score(self, token_ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logprobs and entropies [B, T-1], with gradients."""
        with peer_errors():
            logprobs, entropies = self._engine(token_ids, mask)
        return logprobs, entropies

    @torch.no_grad()
    def score_only(self, token_ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logprobs and entropies [B, T-1], without gradients."""
        with peer_errors():
            logprobs, entropies = self.policy(token_ids, mask)
        return logprobs, entropies

    def spread_reference(self, policy: Policy) -> Spreading:
        """Spread a policy that is not trained. ZeRO-1 and 2 leave weights whole, and so is this."""
        if self._stage == 3:
            raise UserError(
                "algorithm.kl needs a reference policy, which ZeRO3 does not spread: set trainer.strategy to "
                "FSDP2, or train an adapter with model.lora"
            )
        place(policy, device=self.device, ranks=self._ranks)
        return on_every_rank(self._parameters, ranks=self._ranks)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of the sum of all ranks' `loss`."""
        with peer_errors():
            # DeepSpeed averages gradients
            self._engine.backward(loss * self._ranks.world_size)

    def optimizer_step(self, *, step: int) -> tuple[float, float]:
        """Clip, apply and drop the gradients; returns their norm before, and the learning rate. DeepSpeed
        clips as torch does, and leaves a step out whose norm is not finite."""
        rate = learning_rate(self._spec, step=step, total_steps=self._total_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        with peer_errors():
            self._engine.step()
        norm = math.inf if self._optimizer.overflow else float(self._engine.get_global_grad_norm())
        return norm, rate

    def probe_logprobs(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Logprobs [B, T-1] at temperature 1, without gradients."""
        with peer_errors():
            return self.policy.logprobs_at_one(token_ids)

    def engine_weights(self) -> WeightSource:
        """The weights as engines hold them."""
        return self._weights

    def weight_shards(self) -> Iterable[torch.Tensor]:
        """The master weights of which this rank answers for the digest."""
        yield from {
            id(vector): vector for vector in map(self._tensors.vector, self._parameters.values())
        }.values()

    def model_state(self) -> NamedTensors:
        """The model's state dict, each tensor whole. A tied parameter is there once."""
        for name, parameter in self._parameters.items():
            yield name, self._whole_weight(name, parameter, group=self._state_group, dtype=torch.float32)
        yield from self._buffers.items()

    def optimizer_state(self) -> NamedTensors:
        """The optimizer's state, each tensor whole."""
        for name, parameter in self._parameters.items():
            state, shape = self._state_with(parameter), self._shapes[name]
            yield f"step/{name}", state["step"]
            for kind in MOMENTS:
                whole = self._tensors.whole(
                    parameter, state[kind], numel=shape.numel(), group=self._state_group
                )
                yield f"{kind}/{name}", whole.view(shape)

    @torch.no_grad()
    def load(self, state: TrainingState | None) -> None:
        """Take over a state on every rank. Rank 0 gives all ranks one tensor after the other, and each takes
        its part. The optimizer has its memory afterwards, so that a colocated engine does not take it."""
        for parameter in self._parameters.values():
            self._state_with(parameter)
        has_state = self._ranks.broadcast(torch.tensor(state is not None, dtype=torch.uint8))
        if not has_state:
            return
        for name, parameter in self._parameters.items():
            whole = self._from_rank_0(None if state is None else state.model[name], self._shapes[name])
            self._tensors.take_weight(parameter, whole=whole)
        self._optimizer.refresh_fp32_params()
        for name, parameter in self._parameters.items():
            own = self._state_with(parameter)
            found = None if state is None else state.optimizer[f"step/{name}"]
            own["step"].copy_(self._from_rank_0(found, torch.Size())[0])
            for kind in MOMENTS:
                found = None if state is None else state.optimizer[f"{kind}/{name}"]
                whole = self._from_rank_0(found, self._shapes[name])
                self._tensors.take(parameter, own[kind], whole=whole)

    def _from_rank_0(self, tensor: torch.Tensor | None, shape: torch.Size) -> torch.Tensor:
        """Rank 0's `tensor`, flat, on the device of every rank."""
        whole = torch.empty(shape.numel(), dtype=torch.float32, device=self.device)
        if tensor is not None:
            whole.copy_(tensor.view(-1))
        return self._ranks.broadcast(whole)

    @torch.no_grad()
    def _whole_weight(
        self, name: str, parameter: torch.nn.Parameter, *, group: dist.ProcessGroup, dtype: torch.dtype
    ) -> torch.Tensor:
        shape = self._shapes[name]
        whole = self._tensors.whole_weight(parameter, numel=shape.numel(), group=group, dtype=dtype)
        return whole.view(shape)

    def _state_with(self, parameter: torch.nn.Parameter) -> dict[str, torch.Tensor]:
        """AdamW's state of this rank's vector in which `parameter` is; zeros before the first step."""
        vector = self._tensors.vector(parameter)
        state: dict[str, Any] = self._optimizer.optimizer.state[vector]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=vector.device)
            state |= {kind: torch.zeros_like(vector) for kind in MOMENTS}
        return state
