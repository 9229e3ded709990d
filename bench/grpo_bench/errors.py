"""The error of a bench."""


class BenchError(Exception):
    """Two ways cannot be compared, for the reason in the message. It ends the bench."""
