"""How many completions an engine is given at a time. Pure."""

from grpo_api.v1alpha1.spec.job_spec import GRPOJobSpec

SAMPLES_ON_GPU = 1024
"""The largest of vLLM's own limits (max_num_seqs), which it has on GPUs of 70 GB and more; on smaller ones it
has 256, and queues the others itself."""
SAMPLES_ON_CPU = 64
"""Fewer than vLLM's own 128 for each worker: what runs on CPU, and every run of 0.1.0, stays as it is."""


def samples_in_run(spec: GRPOJobSpec) -> int | None:
    """Completions at a time of one engine in a rollout pod, of all its cores. None where it goes without
    saying: in mode Colocated, and on CPU in a job that names none, whose run an image of 0.1.0 then reads."""
    if spec.rollout is None:
        return None
    by_default = SAMPLES_ON_GPU if spec.rollout.has_gpus else None
    of_core = spec.engine.max_num_seqs or by_default
    return None if of_core is None else of_core * spec.engine.num_cores
