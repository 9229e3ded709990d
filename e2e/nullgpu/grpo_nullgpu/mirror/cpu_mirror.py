"""Numbers on null GPUs, by the CPU.

The memory of a null GPU is the host's, so each CUDA tensor has a CPU tensor with the same bytes. Each ATen
operator is called on the GPU first, where torch checks devices, dtypes and shapes and allocates what it
returns, and then on those CPU tensors, into the same memory. That is exact and slow, and enough to train
and to sync tiny models by the code that GPUs get.

Kernels that are no ATen operators, as those of vLLM, Triton and DeepSpeed, are not mirrored.
"""

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves, tree_map

ONLY_ON_THE_GPU = frozenset(
    {
        *("record_stream", "is_pinned", "empty", "empty_strided", "empty_like", "new_empty"),
        *("new_empty_strided", "set_", "resize_", "detach", "alias", "lift_fresh"),
    }
)
"""Operators that move no byte."""
ONLY_ON_THE_CPU = frozenset(
    {
        # how much they return, or what they launch, depends on what is in memory
        *(
            "nonzero",
            "masked_select",
            "masked_scatter_backward",
            "unique_consecutive",
            "_unique2",
            "repeat_interleave",
            "bincount",
        ),
        *("embedding_dense_backward", "sort", "topk", "index_add", "scatter_reduce", "histc"),
        # compiled by NVRTC when they are first used
        *("special_entr", "special_entr_", "sinc", "i0", "digamma", "zeta", "lcm", "gcd"),
    }
)


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the same memory."""
    storage = tensor.untyped_storage()
    num_bytes = storage.nbytes()
    if num_bytes == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    raw = (ctypes.c_char * num_bytes).from_address(storage.data_ptr())
    whole = torch.frombuffer(raw, dtype=torch.uint8).untyped_storage()
    found = torch.empty(0, dtype=tensor.dtype)
    return found.set_(whole, tensor.storage_offset(), tensor.shape, tensor.stride())


def on_cpu(value: Any) -> Any:
    """An argument of an operator for the CPU."""
    if isinstance(value, torch.Tensor):
        return alias(value) if value.is_cuda else value
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == "cuda" else value


def on_gpu(value: Any, device: torch.device) -> Any:
    """What the CPU returned, as a tensor of the GPU."""
    if not isinstance(value, torch.Tensor):
        return value
    found = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    alias(found).copy_(value)
    return found


class Mirror(TorchDispatchMode):
    """Of the thread that enters it, and of the backward passes of what it computes."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(kind.__name__ in ("DTensor", "AsyncCollectiveTensor") for kind in types):
            return NotImplemented  # what it makes of the call comes here again
        if _is_without_memory(types):
            return func(*args, **kwargs)
        device = _device_of(args, kwargs)
        if device is None or func.namespace not in ("aten", "prims", "fsdp"):
            return func(*args, **kwargs)
        name = func._schema.name.partition("::")[2]
        if func.is_view and func._can_decompose():
            # "to" and "reshape" are a view or a copy: in inference mode they come here as they are
            with self:
                return func.decompose(*args, **kwargs)
        if func.is_view or name in ONLY_ON_THE_GPU:
            return func(*args, **kwargs)
        return _mirrored(func, name, args, kwargs, device=device)


def _is_without_memory(types: Any) -> bool:
    is_fake = any("Fake" in kind.__name__ or "Functional" in kind.__name__ for kind in types)
    return is_fake or any("Fake" in type(mode).__name__ for mode in _get_current_dispatch_mode_stack())


def _device_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """The GPU that a call is about."""
    for value in tree_leaves((args, kwargs)):
        if isinstance(value, torch.Tensor) and value.is_cuda:
            return value.device
    wanted = kwargs.get("device")
    return torch.device(wanted) if wanted is not None and torch.device(wanted).type == "cuda" else None


def _mirrored(
    func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, device: torch.device
) -> Any:
    cpu_args, cpu_kwargs = tree_map(on_cpu, args), tree_map(on_cpu, kwargs)
    if "device" in cpu_kwargs:
        cpu_kwargs["device"] = torch.device("cpu")
    cpu_kwargs.pop("pin_memory", None)
    if name in ("_local_scalar_dense", "equal"):
        func(*args, **kwargs)  # it waits for the stream
        return func(*cpu_args, **cpu_kwargs)
    is_mutable = func._schema.is_mutable
    if name in ONLY_ON_THE_CPU or _has_mask(name, args):
        found = func(*cpu_args, **cpu_kwargs)
        if is_mutable:
            return kwargs["out"] if "out" in kwargs else args[0]
        return tree_map(lambda value: on_gpu(value, device), found)
    of_gpu = func(*args, **kwargs)
    if name == "copy_":
        on_cpu(args[0]).copy_(on_cpu(args[1]))
        return of_gpu
    if name == "_to_copy":
        on_cpu(of_gpu).copy_(on_cpu(args[0]))
        return of_gpu
    found = func(*cpu_args, **cpu_kwargs)
    if not is_mutable:
        for own, by_cpu in zip(tree_leaves(of_gpu), tree_leaves(found), strict=True):
            if isinstance(own, torch.Tensor) and own.is_cuda:
                alias(own).copy_(by_cpu)
    return of_gpu


def _has_mask(name: str, args: tuple[Any, ...]) -> bool:
    """Whether an index is a mask, whose true places the GPU would have to count."""
    if not name.startswith(("index", "_index_put")) or len(args) < 2:
        return False
    masks = (torch.bool, torch.uint8)
    return any(isinstance(index, torch.Tensor) and index.dtype in masks for index in tree_leaves(args[1]))


def install() -> None:
    """In this thread and in all that are started from now on."""
    Mirror().__enter__()
    run = threading.Thread.run

    def run_mirrored(thread: threading.Thread) -> None:
        with Mirror():
            run(thread)

    threading.Thread.run = run_mirrored  # type: ignore[method-assign]
    _use_math_attention()


def _use_math_attention() -> None:
    """The kernels of GPUs return what the CPU's do not; the mathematical one is made of ATen operators."""
    switches: tuple[Callable[[bool], None], ...] = (
        torch.backends.cuda.enable_flash_sdp,
        torch.backends.cuda.enable_mem_efficient_sdp,
        torch.backends.cuda.enable_cudnn_sdp,
    )
    for switch in switches:
        switch(False)
