"""The name that a backend has in vLLM's weight transfer config."""

from grpo_api.v1alpha1.spec.weight_sync import ENGINES_OF_VLLM

_PREFIX = "grpo_"


def name_in_vllm(backend: str) -> str:
    """What our engine for this backend is called in vLLM, which has engines of its own under some names."""
    return f"{_PREFIX}{backend}" if backend in ENGINES_OF_VLLM else backend


def backend_of(name_in_vllm: str) -> str:
    """The backend of an engine of ours."""
    backend = name_in_vllm.removeprefix(_PREFIX)
    return backend if backend in ENGINES_OF_VLLM else name_in_vllm
