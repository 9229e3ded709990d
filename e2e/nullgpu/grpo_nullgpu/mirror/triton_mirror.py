"""Kernels of Triton on null GPUs, by Triton's own interpreter.

The memory of a null GPU is the host's, so a kernel reads and writes it at its addresses: also through tables
of pointers. Nothing is compiled. What Inductor makes is launched in another way, and computes nothing.
"""

import threading
from typing import Any

import torch
from cpu_mirror import on_cpu
from triton.runtime.jit import JITFunction

_ONE_AT_A_TIME = threading.RLock()
"""The interpreter has one place in the grid, and puts its own operators into the modules of the language."""


def install() -> None:
    """Let each launch be interpreted."""
    JITFunction.run = _run  # type: ignore[method-assign]
    JITFunction.__call__ = _call  # type: ignore[method-assign]


def _run(kernel: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    if warmup:
        return
    from triton.runtime.interpreter import GridExecutor

    class InPlace(GridExecutor):
        """Without copies to the host and back."""

        def _init_args_hst(self, args_dev: Any, kwargs: Any) -> Any:
            return [on_cpu(value) for value in args_dev], {
                name: on_cpu(value) for name, value in kwargs.items()
            }

        def _restore_args_dev(self, *args: Any) -> None:
            pass

    torch.cuda.current_stream().synchronize()
    function = _interpreted(kernel)
    with _ONE_AT_A_TIME:
        InPlace(function.rewrite(), function.arg_names, grid, kernel.pre_run_hooks)(*args, **kwargs)


def _call(kernel: JITFunction[Any], *args: Any, **kwargs: Any) -> Any:
    """Within another kernel."""
    return _interpreted(kernel)(*args, **kwargs)


def _interpreted(kernel: JITFunction[Any]) -> Any:
    from triton.runtime.interpreter import InterpretedFunction

    if not hasattr(kernel, "interpreted"):
        kernel.interpreted = InterpretedFunction(kernel.fn)  # type: ignore[attr-defined]
    return kernel.interpreted  # type: ignore[attr-defined]
