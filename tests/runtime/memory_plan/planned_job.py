"""A job with GPUs, and the sizes of a model to plan its memory for."""

from typing import Any

from grpo_api.v1alpha1.job import GRPOJob, parse_job
from grpo_runtime.memory_plan.formulas import ModelSizes

# Qwen3-4B's
SIZES = ModelSizes(
    num_parameters=4_022_468_096,
    num_layers=36,
    num_layer_parameters=100_930_816,
    num_largest_parameters=2560 * 9728,
    hidden=2560,
    intermediate=9728,
    query_width=4096,
    key_width=1024,
    num_heads=32,
    vocabulary=151_936,
    num_norms=2,
    has_query_norm=True,
    keeps_scores=False,
)


def a_job(*, num_gpus: int = 8, trainer: dict[str, Any] | None = None, **spec: Any) -> GRPOJob:
    merged = {
        "model": {"source": "hf://Qwen/Qwen3-4B"},
        "dataset": {"source": "builtin://copy"},
        "rewards": [{"name": "copy", "builtin": "char_accuracy"}],
        "algorithm": {"steps": 1},
        "trainer": {"resources": {"limits": {"nvidia.com/gpu": num_gpus}}, **(trainer or {})},
        "rollout": {"resources": {"limits": {"nvidia.com/gpu": 1}}},
        **spec,
    }
    spec_of_job = {name: value for name, value in merged.items() if value is not None}
    return parse_job(
        {"apiVersion": "grpo.dev/v1alpha1", "kind": "GRPOJob", "metadata": {"name": "x"}, "spec": spec_of_job}
    )
