"""The name that a backend has in vLLM's weight transfer config."""

from grpo_api.v1alpha1.spec.weight_sync import VLLM_TRANSFER_ENGINES

_PREFIX = "grpo_"


def name_in_vllm(backend: str) -> str:
    """The name of our engine for this backend in vLLM, which has engines of its own under some names."""
    return f"{_PREFIX}{backend}" if backend in VLLM_TRANSFER_ENGINES else backend


def backend_of(name_in_vllm: str) -> str:
    """The backend of an engine of ours."""
    backend = name_in_vllm.removeprefix(_PREFIX)
    return backend if backend in VLLM_TRANSFER_ENGINES else name_in_vllm
