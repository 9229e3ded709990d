"""From an exception to an exit code and one sentence, and from a rank to its supervisor."""

import logging
import traceback
from pathlib import Path

from grpo_api.contract.exit_codes import PEER_LOST_REASON, ExitCode, exit_policy
from grpo_api.model import ApiModel
from grpo_runtime.errors import UserError, VolumeFullError
from grpo_runtime.report.files import write_atomically
from grpo_runtime.report.volume import is_volume_full
from grpo_runtime.rollout.errors import EngineError, RolloutLostError

logger = logging.getLogger(__name__)

_MAX_SENTENCE_CHARACTERS = 2000


class PeerLostError(Exception):
    """A collective operation failed because another rank is gone or does not answer."""


class CheckpointCorruptError(Exception):
    """Checkpoints were committed, but none of them is whole."""


class FencedError(Exception):
    """A later attempt has begun: this one may no longer change anything."""


_EXIT_CODES: tuple[tuple[tuple[type[BaseException], ...], ExitCode], ...] = (
    ((UserError,), ExitCode.USER_ERROR),
    ((CheckpointCorruptError,), ExitCode.CHECKPOINT_CORRUPT),
    ((RolloutLostError,), ExitCode.ROLLOUT_LOST),
    (
        (PeerLostError, FencedError, EngineError, VolumeFullError, ConnectionError, TimeoutError),
        ExitCode.TRANSIENT,
    ),
)
_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (PeerLostError, PEER_LOST_REASON),
    (VolumeFullError, "VolumeFull"),
)
"""Where the reason says more than that of the exit code."""


class RankFailure(ApiModel):
    """Why one rank ended, as it says itself."""

    reason: str
    message: str
    exit_code: int


def describe_failure(error: BaseException) -> RankFailure:
    """Exit code, reason and sentence for an exception that ends a rank."""
    if is_volume_full(error):
        error = VolumeFullError(f"no space is left on a volume of the pod: {error} ({_where(error)})")
    code = _exit_code(error)
    text = str(error) or type(error).__name__
    if code == ExitCode.UNEXPECTED:
        text = f"{type(error).__name__}: {text} ({_where(error)})"
    return RankFailure(
        reason=next((word for kind, word in _REASONS if isinstance(error, kind)), exit_policy(code).reason),
        message=text[:_MAX_SENTENCE_CHARACTERS],
        exit_code=code,
    )


def _exit_code(error: BaseException) -> ExitCode:
    return next((code for kinds, code in _EXIT_CODES if isinstance(error, kinds)), ExitCode.UNEXPECTED)


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "no traceback"


def failure_path(run_dir: Path, local_rank: int) -> Path:
    """Where a rank leaves its last words."""
    return run_dir / f"error-{local_rank}.json"


def leave_failure(run_dir: Path, error: BaseException, *, local_rank: int) -> ExitCode:
    """Print what ended a rank, leave its last words for the supervisor, and return the code to end with.

    Where the words cannot be left, for a full disk may be the very cause, the code still tells.
    """
    traceback.print_exception(error)
    failure = describe_failure(error)
    try:
        write_atomically(failure_path(run_dir, local_rank), failure.model_dump_json(by_alias=True))
    except OSError as full:
        logger.error("the cause cannot be left for the supervisor: %s", full)
    return ExitCode(failure.exit_code)


def find_failure(run_dir: Path, *, local_rank: int) -> RankFailure | None:
    """A rank's last words, or None when it had no time for them."""
    path = failure_path(run_dir, local_rank)
    return RankFailure.model_validate_json(path.read_text()) if path.exists() else None
