"""Imports of what stays until the process ends."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lasting_imports() -> Iterator[None]:
    """Import torch, transformers or vLLM in here: it takes a quarter less of a core's time.

    They make millions of objects that stay, and the garbage collector would look through all of them again
    and again. Afterwards it leaves them alone for good, which also keeps their pages shared with forks of
    this process.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
