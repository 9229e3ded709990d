"""Exit codes of a trainer or rollout container, and what follows from each."""

from dataclasses import dataclass, replace
from enum import IntEnum

from grpo_api.contract.reasons import Reason


class ExitCode(IntEnum):
    """The codes that our processes end with, and 137, the code of a process killed by SIGKILL."""

    DONE = 0
    UNEXPECTED = 1
    USER_ERROR = 40
    DATA_EXHAUSTED = 41
    """Reserved, see RESERVED."""
    CHECKPOINT_CORRUPT = 42
    ROLLOUT_LOST = 43
    TRANSIENT = 75
    KILLED = 137
    TERMINATED = 143


RESERVED = frozenset({ExitCode.DATA_EXHAUSTED})
"""Codes that no process ends with yet. Nothing runs out of data as long as the sampler starts another epoch
at the end of a dataset; a limit on epochs will use 41."""


@dataclass(frozen=True)
class ExitPolicy:
    """What an exit code means for the job."""

    reason: Reason
    """The reason in status."""
    is_retried: bool
    """Whether another attempt follows."""
    is_counted: bool
    """Whether that attempt counts against failurePolicy.maxRestarts."""
    meaning: str
    """What happened, for messages and the reference."""


EXIT_POLICIES: dict[int, ExitPolicy] = {
    ExitCode.DONE: ExitPolicy(Reason.DONE, is_retried=False, is_counted=False, meaning="every step is done"),
    ExitCode.UNEXPECTED: ExitPolicy(
        Reason.UNEXPECTED_ERROR, is_retried=True, is_counted=True, meaning="an unexpected error"
    ),
    ExitCode.USER_ERROR: ExitPolicy(
        Reason.USER_ERROR,
        is_retried=False,
        is_counted=False,
        meaning="the spec, the data or user code is wrong",
    ),
    ExitCode.DATA_EXHAUSTED: ExitPolicy(
        Reason.DATA_EXHAUSTED,
        is_retried=False,
        is_counted=False,
        meaning="the dataset ended before the steps",
    ),
    ExitCode.CHECKPOINT_CORRUPT: ExitPolicy(
        Reason.CHECKPOINT_CORRUPT,
        is_retried=False,
        is_counted=False,
        meaning="checkpoints were committed but none is valid",
    ),
    ExitCode.ROLLOUT_LOST: ExitPolicy(
        Reason.ROLLOUT_LOST, is_retried=True, is_counted=True, meaning="no rollout engine for too long"
    ),
    ExitCode.TRANSIENT: ExitPolicy(
        Reason.TRANSIENT_ERROR, is_retried=True, is_counted=True, meaning="a failure that a retry may cure"
    ),
    ExitCode.KILLED: ExitPolicy(
        Reason.KILLED, is_retried=True, is_counted=True, meaning="killed by the kernel, mostly out of memory"
    ),
    ExitCode.TERMINATED: ExitPolicy(
        Reason.TERMINATED,
        is_retried=True,
        is_counted=False,
        meaning="asked to stop: eviction, drain, deletion",
    ),
}


UNCOUNTED_REASONS = frozenset({Reason.HUB_UNREACHABLE, Reason.CHECKPOINT_MISSING})
"""Reasons in the termination message of a process with exit code 75 whose attempt is retried but not counted:
what lies outside the job and the cluster, or waits for a person, may last longer than
failurePolicy.maxRestarts."""


def is_uncounted(code: int, *, reason: str) -> bool:
    """Whether the reason that a process wrote before it ended with this code makes the attempt uncounted."""
    return code == ExitCode.TRANSIENT and reason in UNCOUNTED_REASONS


def exit_policy(code: int, *, has_worked: bool = False) -> ExitPolicy:
    """The policy of an exit code; for a code that is not listed it is that of UNEXPECTED.

    `has_worked` is whether an attempt of the job has made a step. Its spec, data and code were right
    then, and a process that finds them wrong may be on a faulty node: USER_ERROR is retried and counted.
    """
    policy = EXIT_POLICIES.get(code, EXIT_POLICIES[ExitCode.UNEXPECTED])
    if code == ExitCode.USER_ERROR and has_worked:
        return replace(policy, is_retried=True, is_counted=True)
    return policy
