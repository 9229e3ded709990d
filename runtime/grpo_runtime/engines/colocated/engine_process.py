"""What a rank must be able to do with the process of its engine, whatever has started it.

A child of the rank is one (`child_process`), an actor of Ray another (`ray`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol


class ServingProcess(Protocol):
    """A process that serves an engine: see `engine_child.serve`."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether it has ended. What it has started may go on."""
        ...

    @property
    def is_stopped(self) -> bool:
        """Whether the kernel has stopped it, so that it cannot do anything."""
        ...

    def kill(self) -> None:
        """Kill it and what it has started; does nothing after `end`."""
        ...

    def end(self, *, seconds: float) -> str:
        """Give it so long to end, kill what is left of it, and say how it ended, as a sentence about its
        engine."""
        ...


@dataclass(frozen=True)
class StartedProcess:
    """A process, and the rank's end of the connection to it."""

    process: ServingProcess
    connection: Connection


StartProcess = Callable[[], StartedProcess]
"""Starts one, in the thread that watches it until it ends. What it raises ends the start of the engine."""
