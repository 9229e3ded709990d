"""Turns an exception into exit code, reason and message, and passes them from a rank to its supervisor."""

import logging
import re
import signal
import traceback
from pathlib import Path

from grpo_api.contract.exit_codes import ExitCode, exit_policy
from grpo_api.contract.progress import TerminationMessage
from grpo_runtime.errors import KnownError, VolumeFullError, VolumeUnusableError
from grpo_runtime.process.error_signature import error_signature, where_raised
from grpo_runtime.storage.files import write_atomically
from grpo_runtime.storage.volume_errors import is_volume_full, why_unusable

logger = logging.getLogger(__name__)

_MAX_MESSAGE_CHARACTERS = 2000
_BROKEN_CONNECTION = re.compile(
    r"broken pipe|connection (reset|closed|refused)|closed by (the )?(remote )?peer|socket (timeout|closed)",
    re.I,
)


def describe_failure(error: BaseException) -> TerminationMessage:
    """Exit code, reason and message of a process that this exception ends."""
    if is_volume_full(error):
        error = VolumeFullError(f"no space is left on a volume of the pod: {error} ({where_raised(error)})")
    elif (why := why_unusable(error)) is not None:
        error = VolumeUnusableError(f"a volume of the pod {why}: {error} ({where_raised(error)})")
    code = _exit_code(error)
    text = str(error) or type(error).__name__
    if code == ExitCode.UNEXPECTED:
        text = f"{type(error).__name__} in {where_raised(error)}: {text}"
    own_reason = error.reason if isinstance(error, KnownError) else None
    return TerminationMessage(
        reason=own_reason or exit_policy(code).reason,
        message=text[:_MAX_MESSAGE_CHARACTERS],
        exit_code=code,
        is_effect=_is_effect(error),
    )


def write_failure(
    run_dir: Path, error: BaseException, *, local_rank: int, step: int | None = None
) -> ExitCode:
    """Print what ends a rank, write it for the supervisor, and return the exit code to end with. `step` is
    the one that the rank made, None before the first.

    It may be that it cannot be written, for example because a full volume is the cause: then the supervisor
    learns the exit code only.
    """
    traceback.print_exception(error)
    failure = describe_failure(error)
    if failure.exit_code == ExitCode.UNEXPECTED:
        failure = failure.model_copy(update={"error": error_signature(error, step=step)})
    try:
        write_atomically(
            failure_path(run_dir, local_rank), failure.model_dump_json(by_alias=True, exclude_none=True)
        )
    except OSError as not_written:
        logger.error("the cause of this failure cannot be written for the supervisor: %s", not_written)
    return ExitCode(failure.exit_code)


def explain_abort(run_dir: Path, error: KnownError, *, local_rank: int) -> None:
    """Write what it will mean if the rank is ended by SIGABRT, which leaves it no time to say why."""
    path = _abort_path(run_dir, local_rank)
    write_atomically(path, describe_failure(error).model_dump_json(by_alias=True, exclude_none=True))


def read_failure(
    run_dir: Path, *, local_rank: int, signal_number: int | None = None
) -> TerminationMessage | None:
    """Why a rank failed, as it wrote it, or explained it before the signal that ended it; None when it did
    neither."""
    path = failure_path(run_dir, local_rank)
    if not path.exists() and signal_number == signal.SIGABRT:
        path = _abort_path(run_dir, local_rank)
    return TerminationMessage.model_validate_json(path.read_text()) if path.exists() else None


def failure_path(run_dir: Path, local_rank: int) -> Path:
    """The file in which a rank writes why it failed."""
    return run_dir / f"error-{local_rank}.json"


def _abort_path(run_dir: Path, local_rank: int) -> Path:
    return run_dir / f"abort-{local_rank}.json"


def _is_effect(error: BaseException) -> bool:
    """Whether another process is the cause. A library reports a broken connection in its own words."""
    if isinstance(error, KnownError):
        return error.is_effect
    return isinstance(error, ConnectionError) or _BROKEN_CONNECTION.search(str(error)) is not None


def _exit_code(error: BaseException) -> ExitCode:
    if isinstance(error, KnownError):
        return error.exit_code
    # what the network does, from whichever library it comes
    return ExitCode.TRANSIENT if isinstance(error, ConnectionError | TimeoutError) else ExitCode.UNEXPECTED
