"""The name that a backend has in vLLM's weight transfer config."""

_OF_VLLM = frozenset({"nccl", "ipc"})
"""vLLM has engines of its own under these names, which load tensors into the model while they arrive."""
_PREFIX = "grpo_"


def name_in_vllm(backend: str) -> str:
    """What our engine for this backend is called in vLLM."""
    return f"{_PREFIX}{backend}" if backend in _OF_VLLM else backend


def backend_of(name_in_vllm: str) -> str:
    """The backend of an engine of ours."""
    backend = name_in_vllm.removeprefix(_PREFIX)
    return backend if backend in _OF_VLLM else name_in_vllm
