"""Python runs this at its start where this folder is on PYTHONPATH: torch on null GPUs computes by the CPU,
in all threads, from its import on.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType


class _BehindTorch(importlib.abc.MetaPathFinder):
    """Installs the mirror once torch has been imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            # not before: to ask for the spec imports nothing
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                import cpu_mirror

                cpu_mirror.install()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _BehindTorch())
