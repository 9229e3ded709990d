"""ZeRO as a job chooses it: the strategy of a stage, and the configuration that DeepSpeed is given.

Nothing here imports DeepSpeed, which takes seconds, until a strategy is made.
"""

import json
import os
from dataclasses import dataclass, field
from typing import Any

import torch

from grpo_api.v1alpha1.spec import DeepSpeedSpec, OptimizerSpec
from grpo_runtime.errors import UserError
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.policy import Policy
from grpo_runtime.trainer.strategy.interface import Strategy

_CPU = {"device": "cpu"}
_FIELD = "trainer.deepspeed.config"
SECTION = "zero_optimization"
TUNING = frozenset(
    {
        "allgather_bucket_size",
        "allgather_partitions",
        "reduce_bucket_size",
        "reduce_scatter",
        "round_robin_gradients",
        "stage3_allgather_sequential",
        "stage3_max_live_parameters",
        "stage3_max_reuse_distance",
        "stage3_model_persistence_threshold",
        "stage3_module_granularity_threshold",
        "stage3_param_persistence_threshold",
        "stage3_prefetch_bucket_size",
        "stage3_use_all_reduce_for_fetch_params",
        "sub_group_size",
        "use_multi_rank_bucket_allreduce",
    }
)
"""What a job may tune. All others change what a step computes, need an operator that is compiled in the pod,
or keep tensors where they are not read."""


@dataclass(frozen=True)
class MakeZero:
    """Makes the strategy of a stage, 1, 2 or 3: a `MakeStrategy`."""

    stage: int
    spec: DeepSpeedSpec = field(default_factory=DeepSpeedSpec)

    def __call__(
        self,
        policy: Policy,
        *,
        optimizer: OptimizerSpec,
        total_steps: int,
        ranks: Ranks,
        device: torch.device | None = None,
    ) -> Strategy:
        # it would search for accelerators of ten makers while it is imported
        os.environ.setdefault("DS_ACCELERATOR", (device or policy.device).type)
        from grpo_runtime.trainer.strategy.zero.strategy import ZeroStrategy

        return ZeroStrategy(
            policy,
            stage=self.stage,
            spec=self.spec,
            optimizer=optimizer,
            total_steps=total_steps,
            ranks=ranks,
            device=device,
        )


def deepspeed_config(spec: DeepSpeedSpec, *, stage: int, optimizer: OptimizerSpec) -> dict[str, Any]:
    """DeepSpeed's JSON configuration for ZeRO of `stage`. Raises UserError as `_read_tuning` does."""
    zero: dict[str, Any] = {
        **_read_tuning(spec.config or "{}"),
        "stage": stage,
        # it would replace torch's linear in the whole process, engine included
        "memory_efficient_linear": False,
    }
    if spec.overlap_comm is not None:
        zero["overlap_comm"] = spec.overlap_comm
    if spec.contiguous_gradients is not None:
        zero["contiguous_gradients"] = spec.contiguous_gradients
    if spec.offload_optimizer:
        zero["offload_optimizer"] = _CPU
    if spec.offload_parameters:
        zero["offload_param"] = _CPU
    return {
        # of samples DeepSpeed knows nothing: a step ends where the strategy says so
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": optimizer.max_grad_norm,
        # torch's AdamW, also on the CPU, where DeepSpeed's own would be compiled in the pod
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        SECTION: zero,
    }


def _read_tuning(text: str) -> dict[str, Any]:
    """The section of ZeRO in `trainer.deepspeed.config`. Raises UserError naming the key and the fix when it
    is no JSON, or has a key that a job may not set."""
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{_FIELD} is not JSON: {error}") from error
    section = config.get(SECTION, {}) if isinstance(config, dict) else None
    if not isinstance(section, dict):
        raise UserError(f'{_FIELD} must be {{"{SECTION}": {{...}}}}: write a JSON object')
    for key in (*(config.keys() - {SECTION}), *(f"{SECTION}.{name}" for name in section.keys() - TUNING)):
        raise UserError(
            f"{_FIELD} has {key}, which this trainer does not take: remove it; in {SECTION} it takes "
            + ", ".join(sorted(TUNING))
        )
    return section
