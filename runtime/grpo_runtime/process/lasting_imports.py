"""Imports whose objects stay until the process ends."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lasting_imports() -> Iterator[None]:
    """Import torch, transformers or vLLM inside this block: that takes a quarter less CPU time.

    These imports make millions of objects that stay, and the garbage collector would look through all of them
    again and again. The block turns it off, and afterwards freezes the objects: the collector leaves them
    alone from then on, and does not write to the memory that forks of this process share with it.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
