"""Imports of what stays until the process ends."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lasting_imports() -> Iterator[None]:
    """Import torch, transformers or vLLM in here: it takes a quarter less of a core's time.

    They make millions of objects that stay, and the garbage collector would look through all of them again
    and again. Afterwards it leaves them alone for good, and so does not write to what forks of this process
    share with it.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
