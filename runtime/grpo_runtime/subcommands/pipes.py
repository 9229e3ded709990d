"""What commands that print a lot have in common."""

import signal


def end_when_the_pipe_closes() -> None:
    """End without a traceback when the program that reads our output (`| head`) has ended."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
