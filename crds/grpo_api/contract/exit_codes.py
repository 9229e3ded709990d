"""Exit codes of a trainer or rollout container, and what the operator does with each."""

from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """The codes our processes end with on purpose. 137 comes from the kernel."""

    DONE = 0
    UNEXPECTED = 1
    USER_ERROR = 40
    DATA_EXHAUSTED = 41
    CHECKPOINT_CORRUPT = 42
    ROLLOUT_LOST = 43
    TRANSIENT = 75
    KILLED = 137
    TERMINATED = 143


PEER_LOST_REASON = "PeerLost"
"""Reason in a termination message of a process that ended only because another one of the gang had."""


@dataclass(frozen=True)
class ExitPolicy:
    """What an exit code means for the job.

    `reason` is the CamelCase reason in status, `is_retried` whether another attempt is made, `is_counted`
    whether that attempt counts against failurePolicy.maxRestarts.
    """

    reason: str
    is_retried: bool
    is_counted: bool
    meaning: str


EXIT_POLICIES: dict[int, ExitPolicy] = {
    ExitCode.DONE: ExitPolicy("Done", False, False, "every step is done"),
    ExitCode.UNEXPECTED: ExitPolicy("UnexpectedError", True, True, "an error nobody foresaw"),
    ExitCode.USER_ERROR: ExitPolicy("UserError", False, False, "the spec, the data or user code is wrong"),
    ExitCode.DATA_EXHAUSTED: ExitPolicy("DataExhausted", False, False, "the dataset ended before the steps"),
    ExitCode.CHECKPOINT_CORRUPT: ExitPolicy(
        "CheckpointCorrupt", False, False, "checkpoints were committed but none is valid"
    ),
    ExitCode.ROLLOUT_LOST: ExitPolicy("RolloutLost", True, True, "no rollout engine for too long"),
    ExitCode.TRANSIENT: ExitPolicy("TransientError", True, True, "a failure that a retry may cure"),
    ExitCode.KILLED: ExitPolicy("Killed", True, True, "killed by the kernel, mostly out of memory"),
    ExitCode.TERMINATED: ExitPolicy("Terminated", True, False, "asked to stop: eviction, drain, deletion"),
}


def exit_policy(code: int) -> ExitPolicy:
    """The policy of any exit code; an unlisted one is treated as UNEXPECTED."""
    return EXIT_POLICIES.get(code, EXIT_POLICIES[ExitCode.UNEXPECTED])
