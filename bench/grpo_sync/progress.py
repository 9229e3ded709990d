"""Tells the person at the terminal what is measured now."""

import sys


def say(sentence: str) -> None:
    """Print to standard error, so that standard output has only the tables."""
    print(sentence, file=sys.stderr, flush=True)
