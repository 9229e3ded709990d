"""vLLM's CPU worker with what its CPU build lacks, for engines whose workers have some of the experts each.

vLLM loads it by name (`--worker-cls`), in such an engine only: it imports the experts of vLLM's CPU build.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

from grpo_runtime.engines.vllm.cpu_workers import PipelineStageWorker

_VLLM_APPLY = CPUUnquantizedExperts.apply
"""vLLM's own `apply`, however often a worker is made: the indices of experts must be looked up once."""


class ExpertParallelWorker(PipelineStageWorker):
    """A worker that has some of the experts, with what the CPU build lacks.

    vLLM's CPU build starts such an engine and fails at its first request (vllm-project/vllm#57837, open). Its
    communicator lacks the two operations that carry tokens to the experts of other cores and back. And its
    kernel takes the number of an expert for its index in the weights of this worker, so that it reads beyond
    them for one that another worker has.
    """

    def init_device(self) -> None:
        """Does what vLLM does. vLLM picks these classes itself, so they are completed, in this process
        only."""
        communicator: Any = CpuCommunicator
        communicator.all_gatherv, communicator.reduce_scatterv = all_gatherv, reduce_scatterv
        experts: Any = CPUUnquantizedExperts
        experts.apply = with_own_experts(_VLLM_APPLY)
        super().init_device()  # type: ignore[no-untyped-call] # vLLM leaves it without types


def all_gatherv(
    communicator: CpuCommunicator, tensors: Sequence[torch.Tensor], dim: int, sizes: Sequence[int]
) -> list[torch.Tensor]:
    """Gathers for each tensor the rows that the workers of the group have of it: worker i has `sizes[i]`.
    Raises ValueError for a `dim` other than that of the rows, 0."""
    _require_rows(dim)
    gathered = []
    for tensor in tensors:
        # gloo gathers parts of equal size only
        padded = tensor.new_zeros((max(sizes), *tensor.shape[1:]))
        padded[: len(tensor)] = tensor
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=communicator.device_group)
        gathered.append(torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)]))
    return gathered


def reduce_scatterv(
    communicator: CpuCommunicator, tensor: torch.Tensor, dim: int, sizes: Sequence[int]
) -> torch.Tensor:
    """The rows of this worker, summed over the workers of the group. Worker i gets `sizes[i]`. Raises
    ValueError for a `dim` other than that of the rows, 0."""
    _require_rows(dim)
    total = tensor.clone()
    dist.all_reduce(total, group=communicator.device_group)
    start = sum(sizes[: communicator.rank_in_group])
    return total.narrow(0, start, sizes[communicator.rank_in_group]).clone()


def _require_rows(dim: int) -> None:
    if dim != 0:
        raise ValueError(f"experts exchange rows, which are dimension 0 of a tensor, not {dim}")


def with_own_experts(apply: Callable[..., None]) -> Callable[..., None]:
    """`apply` of a kernel that has all experts, for one that has those of an expert map."""

    @wraps(apply)
    def of_own_experts(
        self: CPUUnquantizedExperts,
        *,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        expert_map: torch.Tensor | None,
        apply_router_weight_on_input: bool,
        **arguments: Any,
    ) -> None:
        if expert_map is not None:
            if apply_router_weight_on_input:
                raise NotImplementedError(
                    "experts that are weighted by their input have no expert parallelism on CPU"
                )
            topk_weights, topk_ids = own_choice(topk_weights, topk_ids, expert_map=expert_map)
        apply(
            self,
            topk_weights=topk_weights,
            topk_ids=topk_ids,
            expert_map=expert_map,
            apply_router_weight_on_input=apply_router_weight_on_input,
            **arguments,
        )

    return of_own_experts


def own_choice(
    topk_weights: torch.Tensor, topk_ids: torch.Tensor, *, expert_map: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and places [T, K] of the experts that are chosen for T tokens, with those that other workers
    have at index 0 and without weight. `expert_map` has the index of each expert, or -1."""
    places = expert_map[topk_ids.long()]
    is_own = places >= 0
    return topk_weights * is_own, torch.where(is_own, places, 0).to(topk_ids.dtype)
