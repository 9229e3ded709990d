"""Why two ways cannot be compared."""


class BenchError(Exception):
    """The message is a sentence for people; it ends the bench."""
