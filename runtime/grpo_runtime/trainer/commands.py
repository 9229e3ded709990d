"""The acts in which ranks meet. Rank 0 announces each as one command, so that every rank does the same
next."""

from enum import IntEnum


class Command(IntEnum):
    """What all ranks do now. Numbers add up where ranks meet: only rank 0 sends another than NONE, which is
    0."""

    NONE = 0
    """Nothing: rank 0 waits for engines or rewards."""
    PROBE = 1
    """Compute the probe's logprobs under the present weights."""
    SYNC = 2
    """Hand the weights to the engines."""
    TRAIN = 3
    """Train on the batch that rank 0 sends."""
    SAVE = 4
    """Copy what a checkpoint holds, and begin to write it."""
    EXPORT = 5
    """Write the trained policy."""
    DONE = 6
    """Every step is done: end."""
    STOP = 7
    """A rank was asked to stop, and what had to be saved is saved: end."""
    DIGEST = 8
    """Digest the weights that were trained."""
    READ = 9
    """Rank 0 has read what the run begins with: go on."""


STEP_COMMANDS = frozenset({Command.PROBE, Command.SYNC, Command.TRAIN})
"""Commands of a step, which are void when a rank was asked to stop."""
