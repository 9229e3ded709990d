"""What a process does before it ends as it stands, with nothing destroyed: it ends what it has started."""

from collections.abc import Callable

_calls: list[Callable[[], None]] = []


def at_end(call: Callable[[], None]) -> None:
    """Have `run_at_end` call this. A process that is killed does not: the kernel ends its children."""
    _calls.append(call)


def run_at_end() -> None:
    """Call what `at_end` was given, the last first, each once."""
    while _calls:
        _calls.pop()()
