"""Errors that end our processes on purpose, each with its exit code, which says whether a retry helps; and
how the error of a library is quoted."""

from typing import ClassVar

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.reasons import Reason


class KnownError(Exception):
    """An error with a known cause; the message names the thing and the fix.

    A process that fails with it exits with `exit_code`.
    """

    exit_code: ClassVar[ExitCode]
    reason: ClassVar[Reason | None] = None
    """Where it says more than the reason of the exit code."""
    is_superseded: ClassVar[bool] = False
    """Whether it says that a later attempt of the job has begun."""
    is_effect: ClassVar[bool] = False
    """Whether another process of the gang is the cause, because it is gone or does not answer."""


class UserError(KnownError):
    """The user's spec, data or code is wrong: trying again cannot help."""

    exit_code = ExitCode.USER_ERROR


class VolumeFullError(KnownError):
    """No space is left where a run writes; the message names the volume. A retry helps once there is some."""

    exit_code = ExitCode.TRANSIENT
    reason = Reason.VOLUME_FULL


class VolumeUnusableError(KnownError):
    """A volume cannot be written or read: it is read-only, belongs to another user, or its storage fails. A
    retry helps once it can."""

    exit_code = ExitCode.TRANSIENT
    reason = Reason.VOLUME_UNUSABLE


class HubUnreachableError(KnownError):
    """The Hugging Face Hub cannot be reached, or fails itself. A retry helps once it can, so such an end does
    not count against failurePolicy.maxRestarts."""

    exit_code = ExitCode.TRANSIENT
    reason = Reason.HUB_UNREACHABLE


class RewardServiceUnreachableError(KnownError):
    """A reward service could not be reached, or said that it is overloaded, for too long. A retry helps once
    it answers."""

    exit_code = ExitCode.TRANSIENT
    reason = Reason.REWARD_SERVICE_UNREACHABLE


class GpuOutOfMemoryError(KnownError):
    """A GPU had too little memory after steps had been made: the next attempt computes fewer tokens at a
    time."""

    exit_code = ExitCode.TRANSIENT
    reason = Reason.GPU_OUT_OF_MEMORY


class GpuTooSmallError(UserError):
    """A GPU has too little memory for what the spec asks of it."""

    reason = Reason.GPU_OUT_OF_MEMORY


class AddressInUseError(KnownError):
    """Another process listens on the port at which the ranks meet."""

    exit_code = ExitCode.TRANSIENT
    reason = Reason.ADDRESS_IN_USE


class RunConfigChangedError(KnownError):
    """The file with the RunConfig is not the one that the operator made. A retry helps once it is made
    again."""

    exit_code = ExitCode.TRANSIENT
    reason = Reason.REVISION_CHANGED


class PeerLostError(KnownError):
    """A collective operation failed because another rank is gone or does not answer."""

    exit_code = ExitCode.TRANSIENT
    reason = Reason.PEER_LOST
    is_effect = True


class CheckpointCorruptError(KnownError):
    """Checkpoints were committed, but none of them is whole."""

    exit_code = ExitCode.CHECKPOINT_CORRUPT


class CheckpointMissingError(KnownError):
    """The volume has no checkpoint as new as one that the job has saved: it is not the volume of before. A
    retry helps once it is, or once a person accepts the loss."""

    exit_code = ExitCode.TRANSIENT
    reason = Reason.CHECKPOINT_MISSING


class SupersededError(KnownError):
    """A later attempt has begun: this one may no longer change anything."""

    exit_code = ExitCode.TRANSIENT
    is_superseded = True


def first_line(error: BaseException) -> str:
    """The first line of what a library says, of a bounded length."""
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__
