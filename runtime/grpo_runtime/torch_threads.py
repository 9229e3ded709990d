"""How many CPU threads torch computes with, in processes that train and may sample in turn.

torch counts them for each thread of a process: one that computes for the first time takes the number that
was set last, in whichever thread, and keeps it until it sets another.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# vLLM's CPU worker replaces torch's own by one that does nothing, in the whole process
from torch import set_num_threads

from grpo_api.contract.run_config import RunConfig


def pin_num_threads(num_threads: int) -> None:
    """Make this thread compute with `num_threads` from now on, whatever others set later."""
    # counts as computing for the first time
    torch.get_num_threads()
    set_num_threads(num_threads)


def num_engine_threads(run_config: RunConfig) -> int:
    """CPU threads of an engine of mode Colocated. The engine uses its rank's threads: the rank does not
    compute while the engine does."""
    return run_config.threads_per_process


@contextmanager
def engine_threads(num_threads: int) -> Iterator[None]:
    """Until the end of the block this thread computes as an engine on CPU with `num_threads` does.

    The one that trains keeps its number, and does not compute meanwhile. An engine on a GPU uses what the
    process has.
    """
    if torch.cuda.is_available():
        yield
        return
    before = torch.get_num_threads()
    set_num_threads(num_threads)
    try:
        yield
    finally:
        set_num_threads(before)
