"""What a command of `grpo-runtime` is made of, and what those that print a lot have in common."""

import argparse
import signal
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """One command. `execute` imports what it runs and returns the exit code."""

    name: str
    help: str
    """Its line in the list of all commands."""
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    execute: Callable[[argparse.Namespace], int]
    has_own_options: bool = False
    """Whether what it runs reads the arguments itself, --help included: `execute` finds them in `rest`."""


def end_when_the_pipe_closes() -> None:
    """End without a traceback when the program that reads our output (`| head`) has ended."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
