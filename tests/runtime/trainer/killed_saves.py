"""Processes that are killed while they save: `killed_saves.py FOLDER` does so at each of POINTS, in a
folder of that name. Each has committed step 2 and dies in the save of step 4, whose weights are all 4."""

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from still_strategy import StillStrategy, saver_of, store

from grpo_runtime.trainer.checkpoint.contents import RunState
from grpo_runtime.trainer.checkpoint.saver import Saver

KEEP = 1


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_copy(strategy: StillStrategy) -> None:
    """After half of the moments are copied."""
    state = strategy.optimizer_state

    def half() -> Iterator[tuple[str, torch.Tensor]]:
        tensors = list(state())
        yield from tensors[: len(tensors) // 2]
        die()

    strategy.optimizer_state = half  # type: ignore[method-assign]


def in_write(strategy: StillStrategy) -> None:
    """When the file with the weights has this many bytes: the kernel ends who writes more."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


def at_event(event: str, path_part: str) -> Callable[[StillStrategy], None]:
    """Right before something is done with a path that has this in it."""

    def arm(strategy: StillStrategy) -> None:
        def hook(name: str, arguments: tuple[Any, ...]) -> None:
            if name == event and path_part in str(arguments[0]):
                die()

        sys.addaudithook(hook)

    return arm


POINTS: dict[str, Callable[[StillStrategy], None]] = {
    "in the middle of the copy": in_copy,
    "in the middle of the write": in_write,
    "before the optimizer's file": at_event("open", "optimizer.safetensors"),
    "before the manifest": at_event("open", ".manifest.json."),
    "before the manifest has its name": at_event("os.rename", ".manifest.json."),
    "before the checkpoint has its name": at_event("os.rename", ".tmp-step-000004"),
    "before LATEST": at_event("os.rename", ".LATEST."),
    "before the one before is removed": at_event("shutil.rmtree", "step-000002-discarded"),
}


async def save(saver: Saver, strategy: StillStrategy, step: int) -> None:
    strategy.set(float(step))
    saver.save(RunState(step=step))
    await saver.wait()
    assert saver.poll()


def be_killed(folder: Path, arm: Callable[[StillStrategy], None]) -> None:
    strategy, target = StillStrategy(folder / "tiny"), store(folder, keep=KEEP)
    target.begin_attempt()
    saver = saver_of(strategy, target, output_dir=folder)
    asyncio.run(save(saver, strategy, 2))
    arm(strategy)
    asyncio.run(save(saver, strategy, 4))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for point, arm in POINTS.items():
        child = os.fork()
        if child == 0:
            place = Path(sys.argv[1]) / point
            place.mkdir()
            be_killed(place, arm)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        assert os.WIFSIGNALED(status), f"{point}: it was not killed, but ended with {status}"
