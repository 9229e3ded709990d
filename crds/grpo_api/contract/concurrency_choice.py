"""How many completions an engine is given at a time. Pure."""

from grpo_api.v1alpha1.spec.job_spec import GRPOJobSpec

SAMPLES_ON_GPU = 1024
"""The largest of vLLM's own limits (max_num_seqs), which it has on GPUs of 70 GB and more; on smaller ones it
has 256, and queues the others itself."""
SAMPLES_ON_CPU = 64
"""Fewer than vLLM's own 128 for each worker."""


def samples_per_engine(spec: GRPOJobSpec) -> int:
    """Completions at a time of one engine in a rollout pod, of all its cores."""
    has_gpus = spec.rollout is not None and spec.rollout.has_gpus
    if spec.engine.max_num_seqs is None and not has_gpus:
        return SAMPLES_ON_CPU
    return (spec.engine.max_num_seqs or SAMPLES_ON_GPU) * spec.engine.num_cores
