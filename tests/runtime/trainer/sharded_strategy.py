"""A second Strategy, made here and not in the product: each rank holds a slice of every tensor and no more.

Whole parameters exist between the first micro-batch and the optimizer's step, and are NaN otherwise: what
reads them without gathering them is noticed.
"""

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist

from grpo_api.v1alpha1.spec import OptimizerSpec
from grpo_runtime.model.weights import NamedTensors
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.optimizer import learning_rate
from grpo_runtime.trainer.policy import Policy
from grpo_runtime.trainer.strategy.interface import Spreading, TrainingState
from grpo_runtime.trainer.strategy.placement import on_every_rank, place
from grpo_runtime.weight_sync.source import TensorSpec

KINDS = ("exp_avg", "exp_avg_sq")


class ShardedStrategy:
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
        self._policy = policy
        self._ranks = ranks
        place(policy, device=device or policy.device, ranks=ranks)
        self._spec = optimizer
        self._total_steps = total_steps
        self._rank, self._world_size = ranks.rank, ranks.world_size
        self._group = dist.new_group(backend="gloo")
        self._parameters = dict(policy.model.named_parameters())
        self._shards = {name: self._own(tensor) for name, tensor in self._parameters.items()}
        groups = [
            {
                "params": [self._shards[name]],
                "weight_decay": optimizer.weight_decay if tensor.ndim > 1 else 0.0,
            }
            for name, tensor in self._parameters.items()
        ]
        self._adamw = torch.optim.AdamW(
            groups, lr=optimizer.learning_rate, betas=(optimizer.beta1, optimizer.beta2)
        )
        self._is_whole = True
        self._forget()

    @property
    def device(self) -> torch.device:
        return self._policy.device

    @property
    def vocab_size(self) -> int:
        return int(self._policy.model.config.vocab_size)

    @contextlib.contextmanager
    def micro_batch(self, *, is_last: bool) -> Iterator[None]:
        self._gather_all()
        yield
        if is_last:
            for name, parameter in self._parameters.items():
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad, group=self._group)
                self._shards[name].grad = self._own(parameter.grad)
                parameter.grad = None

    def score(self, token_ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._policy(token_ids, mask)

    @torch.no_grad()
    def score_only(self, token_ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._policy(token_ids, mask)

    def spread_reference(self, policy: Policy) -> Spreading:
        place(policy, device=self.device, ranks=self._ranks)
        return on_every_rank({}, ranks=self._ranks)

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def optimizer_step(self, *, step: int) -> tuple[float, float]:
        rate = learning_rate(self._spec, step=step, total_steps=self._total_steps)
        gradients = [shard.grad for shard in self._shards.values()]
        squares = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
        dist.all_reduce(squares, group=self._group)
        norm = squares.sqrt()
        for gradient in gradients:
            gradient.mul_((self._spec.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self._adamw.step()
        self._adamw.zero_grad()
        self._forget()
        return float(norm), rate

    def probe_logprobs(self, token_ids: torch.Tensor) -> torch.Tensor:
        self._gather_all()
        logprobs = self._policy.logprobs_at_one(token_ids)
        self._forget()
        return logprobs

    def engine_weights(self) -> "ShardedWeights":
        return ShardedWeights(self)

    def layout(self) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(name, tuple(parameter.shape), parameter.dtype)
            for name, parameter in self._parameters.items()
        )

    def model_state(self) -> NamedTensors:
        for name, parameter in self._parameters.items():
            yield name, self._whole(self._shards[name], like=parameter)

    def optimizer_state(self) -> NamedTensors:
        for name, parameter in self._parameters.items():
            state = self._adamw_state(name)
            yield f"step/{name}", state["step"]
            for kind in KINDS:
                yield f"{kind}/{name}", self._whole(state[kind], like=parameter)

    @torch.no_grad()
    def load(self, state: TrainingState | None) -> None:
        has_state = torch.tensor(int(state is not None))
        dist.broadcast(has_state, src=0, group=self._group)
        if not has_state:
            return
        for name, parameter in self._parameters.items():
            own = self._adamw_state(name)
            self._shards[name].copy_(self._part(None if state is None else state.model[name], like=parameter))
            step = torch.zeros(()) if state is None else state.optimizer[f"step/{name}"]
            dist.broadcast(step, src=0, group=self._group)
            own["step"].copy_(step)
            for kind in KINDS:
                whole = None if state is None else state.optimizer[f"{kind}/{name}"]
                own[kind].copy_(self._part(whole, like=parameter))

    def _adamw_state(self, name: str) -> dict[str, torch.Tensor]:
        shard = self._shards[name]
        state = self._adamw.state[shard]
        if not state:
            state |= {"step": torch.zeros(()), **{kind: torch.zeros_like(shard) for kind in KINDS}}
        return state

    def _own(self, whole: torch.Tensor) -> torch.Tensor:
        return whole.detach().reshape(-1).tensor_split(self._world_size)[self._rank].clone()

    def _part(self, whole: torch.Tensor | None, *, like: torch.Tensor) -> torch.Tensor:
        """This rank's part of a tensor that rank 0 has."""
        whole = torch.empty(like.shape) if whole is None else whole.clone()
        dist.broadcast(whole, src=0, group=self._group)
        return self._own(whole)

    @torch.no_grad()
    def _whole(self, shard: torch.Tensor, *, like: torch.Tensor) -> torch.Tensor:
        flat = torch.empty(like.numel())
        for rank, part in enumerate(flat.tensor_split(self._world_size)):
            if rank == self._rank:
                part.copy_(shard)
            dist.broadcast(part, src=rank, group=self._group)
        return flat.reshape(like.shape)

    @torch.no_grad()
    def _gather_all(self) -> None:
        if not self._is_whole:
            for name, parameter in self._parameters.items():
                parameter.copy_(self._whole(self._shards[name], like=parameter))
            self._is_whole = True

    @torch.no_grad()
    def _forget(self) -> None:
        for parameter in self._parameters.values():
            parameter.fill_(torch.nan)
        self._is_whole = False


class ShardedWeights:
    """What engines are given: the layout is known to each rank, a tensor is whole while all ranks read it."""

    def __init__(self, strategy: ShardedStrategy) -> None:
        self._strategy = strategy

    def layout(self) -> tuple[TensorSpec, ...]:
        return self._strategy.layout()

    def tensors(self) -> NamedTensors:
        return self._strategy.model_state()
