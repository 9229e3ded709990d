"""The configuration that DeepSpeed is given: what the job asks for, and what the strategy itself needs."""

import json
from typing import Any

from grpo_api.v1alpha1.spec import DeepSpeedSpec, OptimizerSpec

_CPU = {"device": "cpu"}


def deepspeed_config(spec: DeepSpeedSpec, *, stage: int, optimizer: OptimizerSpec) -> dict[str, Any]:
    """DeepSpeed's JSON configuration for ZeRO of `stage`. What `spec.config` says is in it as it stands; the
    API has refused the keys that are set here."""
    config = json.loads(spec.config or "{}")
    zero = {
        "stage": stage,
        # it would replace torch's linear in the whole process, engine included
        "memory_efficient_linear": False,
        **config.pop("zero_optimization", {}),
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
        **config,
        "zero_optimization": zero,
    }
