"""What is known of a process that a signal killed."""

import signal


def was_killed_by(number: int) -> str:
    """The end of a sentence that names the process: by which signal, and what that mostly means."""
    hint = "; mostly this means out of memory" if number == signal.SIGKILL else ""
    return f"was killed by {signal.Signals(number).name}{hint}"
