"""Python runs this at its start where this folder is on PYTHONPATH: torch, Triton and vLLM on null GPUs
compute by the CPU, in all threads, from their import on.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

MIRRORS = {
    "torch": ("cpu_mirror", "install"),
    "triton.runtime.jit": ("triton_mirror", "install"),
    "vllm.distributed.device_communicators.cuda_wrapper": ("engine_mirror", "install_in_cuda_wrapper"),
    "vllm.distributed.parallel_state": ("engine_mirror", "install_in_groups"),
    "flashinfer.comm.cuda_ipc": ("engine_mirror", "install_in_flashinfer"),
    "vllm.v1.worker.gpu.model_runner": ("engine_mirror", "install_in_runner"),
    "vllm.v1.worker.gpu_worker": ("engine_mirror", "install_in_worker"),
}
"""Modules, and which function of this folder is called once each of them has been imported."""


class _Behind(importlib.abc.MetaPathFinder):
    """Installs a mirror behind a module."""

    def __init__(self, module: str, mirror: str, install: str) -> None:
        self._module, self._mirror, self._install = module, mirror, install

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None:
            return None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            # not before: to ask for the spec imports nothing
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                getattr(importlib.import_module(self._mirror), self._install)()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path[:0] = [_Behind(module, *mirror) for module, mirror in MIRRORS.items()]
